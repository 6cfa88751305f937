-- adopt: put the owner id that the caller chose in place of the random one under which the lease was taken.
-- KEYS[1]  lock key                     string: owner id
-- ARGV[1]  owner id under which the lease was taken
-- ARGV[2]  owner id to store; the same one only to see whether the lease is still ours
-- ARGV[3]  1 if the reply to an earlier attempt of the same call was lost, so that the id may be stored already
-- Replies  1 stored
--          {remaining lease in milliseconds, owner id or ''} not ours
--
-- Needs the prelude owner_of.
local stored = owner_of(KEYS[1])
if stored == ARGV[1] then
  if ARGV[2] ~= ARGV[1] then
    redis.call('SET', KEYS[1], ARGV[2], 'KEEPTTL')
  end
  return 1
end
if stored == ARGV[2] and ARGV[3] == '1' then
  return 1
end
return {redis.call('PTTL', KEYS[1]), stored or ''}
