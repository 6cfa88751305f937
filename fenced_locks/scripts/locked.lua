-- locked: whether anybody holds the lock.
-- KEYS[1]  lock key                     string: owner id
-- Replies  1 yes | 0 no
return redis.call('EXISTS', KEYS[1])
