-- owned: whether the lock is held under this owner id.
-- KEYS[1]  lock key                     string: owner id
-- ARGV[1]  owner id
-- Replies  1 yes | 0 no
--
-- Needs the prelude owner_of.
return owner_of(KEYS[1]) == ARGV[1] and 1 or 0
