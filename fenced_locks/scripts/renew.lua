-- renew: let a lease that is still ours last a while longer. Never acquires, and never shortens.
-- KEYS[1]  lock key                     string: owner id
-- ARGV[1]  owner id
-- ARGV[2]  lease from now in milliseconds, > 0
-- Replies  end of the lease in server milliseconds: done
--          {remaining lease in milliseconds, owner id or ''} not ours
--
-- Needs the prelude owner_of.
local stored = owner_of(KEYS[1])
local left_ms = redis.call('PTTL', KEYS[1])
if stored ~= ARGV[1] then
  return {left_ms, stored or ''}
end
local lease_ms = tonumber(ARGV[2])
local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
if left_ms >= 0 and left_ms < lease_ms then
  redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', now_ms + lease_ms))
end
return now_ms + math.max(left_ms, lease_ms)
