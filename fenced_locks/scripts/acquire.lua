-- acquire: take the lock if it is free and issue a fence token, in one step.
-- KEYS[1]  lock key                     string: owner id
-- KEYS[2]  counter key                  string: last token
-- ARGV[1]  owner id
-- ARGV[2]  lease in milliseconds, > 0; 0 for a lease without end
-- ARGV[3]  argument of the issuer's mint function
-- ARGV[4…] owner ids of earlier attempts of this same call whose replies were lost: a lease of theirs is ours
-- Replies  'token end' granted: two numbers, the end of the lease in server milliseconds (0 for none)
--          {remaining lease in milliseconds (-1 without end), owner id} busy
--          error FENCE… no token could be issued; nothing was written
--
-- The token comes first: a script that fails half-way does not roll back, and a lock without a token would stay.
local stored = redis.pcall('GET', KEYS[1])
if type(stored) == 'table' then
  -- Not a string, so not a lock; SET NX would refuse it too.
  return {redis.call('PTTL', KEYS[1]), ''}
end
if stored then
  local ours = false
  for i = 4, #ARGV do
    ours = ours or stored == ARGV[i]
  end
  if not ours then
    return {redis.call('PTTL', KEYS[1]), stored}
  end
end
local lease_ms = tonumber(ARGV[2])
local time = redis.call('TIME')
local now_us = tonumber(time[1]) * 1000000 + tonumber(time[2])
local token, reason = mint(KEYS[2], now_us, lease_ms, ARGV[3])
if not token then
  return redis.error_reply('FENCE counter ' .. reason)
end
if lease_ms == 0 then
  redis.call('SET', KEYS[1], ARGV[1])
  return token .. ' 0'
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return string.format('%s %.0f', token, math.floor(now_us / 1000) + lease_ms)
