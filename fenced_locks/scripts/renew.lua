-- renew: let a lease that is still ours last a while longer. Never acquires, and never shortens.
-- KEYS[1]  lock key                     string: owner id
-- ARGV[1]  owner id
-- ARGV[2]  lease from now in milliseconds, > 0
-- Replies  1 done | {remaining lease in milliseconds, owner id or ''} not ours
--
-- Needs the prelude owner_of.
local stored = owner_of(KEYS[1])
local left_ms = redis.call('PTTL', KEYS[1])
if stored ~= ARGV[1] then
  return {left_ms, stored or ''}
end
if left_ms >= 0 and left_ms < tonumber(ARGV[2]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return 1
