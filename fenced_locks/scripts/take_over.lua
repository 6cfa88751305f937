-- take_over: take the lease of a named owner away from him, with a token newer than his; nobody else's lease.
-- KEYS[1]  lock key                     string: owner id
-- KEYS[2]  counter key                  string: last token
-- ARGV[1]  owner id of who takes it; unguessable
-- ARGV[2]  lease in milliseconds, > 0
-- ARGV[3]  argument of the issuer's mint function
-- ARGV[4]  owner id that loses it; not empty
-- Replies  'token end' taken: two numbers, the end of the lease in server milliseconds
--          {remaining lease in milliseconds, owner id or ''} it is not his
--          error FENCE… no token could be issued; nothing was written
--
-- Needs the preludes read_counter, mint and owner_of. Sent twice, it takes what it took already, with another token.
local stored = owner_of(KEYS[1])
if stored ~= ARGV[4] and stored ~= ARGV[1] then
  return {redis.call('PTTL', KEYS[1]), stored or ''}
end
local time = redis.call('TIME')
local now_us = tonumber(time[1]) * 1000000 + tonumber(time[2])
local lease_ms = tonumber(ARGV[2])
local token, reason = mint(KEYS[2], now_us, lease_ms, ARGV[3])
if not token then
  return redis.error_reply('FENCE counter ' .. reason)
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return string.format('%s %.0f', token, math.floor(now_us / 1000) + lease_ms)
