-- adopt: put the owner id that the caller chose in place of the random one under which the lease was taken.
-- KEYS[1]  lock key                     string: owner id
-- ARGV[1]  owner id under which the lease was taken
-- ARGV[2]  owner id to store; the same one only to see whether the lease is still ours
-- Replies  1 stored, now or by an earlier attempt
--          {remaining lease in milliseconds, owner id or ''} not ours
local stored = redis.pcall('GET', KEYS[1])
if stored == ARGV[2] then
  return 1
end
if stored == ARGV[1] then
  redis.call('SET', KEYS[1], ARGV[2], 'KEEPTTL')
  return 1
end
return {redis.call('PTTL', KEYS[1]), type(stored) == 'string' and stored or ''}
