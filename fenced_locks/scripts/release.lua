-- release: give the lock back if it is still ours. Deletes first, so it works when the server is full.
-- KEYS[1]  lock key                     string: owner id
-- ARGV[1…] owner ids, any of which is ours
-- Replies  1 released | {remaining lease in milliseconds, owner id or ''} not ours
local stored = redis.pcall('GET', KEYS[1])
for i = 1, #ARGV do
  if stored == ARGV[i] then
    redis.call('DEL', KEYS[1])
    return 1
  end
end
return {redis.call('PTTL', KEYS[1]), type(stored) == 'string' and stored or ''}
