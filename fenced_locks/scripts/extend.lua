-- extend: move the end of a lease that is still ours. Never acquires. Sent twice, it does the same as sent once.
-- KEYS[1]  lock key                     string: owner id
-- ARGV[1]  owner id
-- ARGV[2]  lease from now in milliseconds, > 0; 0 if ARGV[3] says the end
-- ARGV[3]  end of the lease in server milliseconds
-- Replies  end of the lease in server milliseconds: moved
--          {remaining lease in milliseconds, owner id or ''} not ours, or that end has passed
--
-- Needs the prelude owner_of.
local stored = owner_of(KEYS[1])
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local ends = tonumber(ARGV[3])
if ARGV[2] ~= '0' then
  ends = now + tonumber(ARGV[2])
end
if stored ~= ARGV[1] or ends <= now then
  return {redis.call('PTTL', KEYS[1]), stored or ''}
end
redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', ends))
return ends
