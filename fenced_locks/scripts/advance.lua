-- advance: issue another, greater fence token for a lease that is still ours. Sent twice, it issues two, of which the
-- first is nobody's: tokens only have to grow.
-- KEYS[1]  lock key                     string: owner id
-- KEYS[2]  counter key                  string: last token
-- ARGV[1]  owner id
-- ARGV[2]  what the token must be greater than, digits, < 2^53; the lease's present token or more
-- ARGV[3]  argument of the issuer's mint function
-- Replies  token, digits
--          {remaining lease in milliseconds, owner id or ''} not ours
--          error FENCE… no token could be issued; where mint refused, nothing was written
--
-- Needs the preludes read_counter, mint and owner_of. The counter may have been lost while the lease stands, so it is
-- raised before mint goes on from it. One that cannot be read is left for mint to judge.
local stored = owner_of(KEYS[1])
local left_ms = redis.call('PTTL', KEYS[1])
if stored ~= ARGV[1] then
  return {left_ms, stored or ''}
end
local floor, before = tonumber(ARGV[2]), nil
local last = read_counter(KEYS[2])
if last and last < floor then
  before = redis.call('GET', KEYS[2])
  redis.call('SET', KEYS[2], ARGV[2], 'KEEPTTL')
end
local time = redis.call('TIME')
local now_us = tonumber(time[1]) * 1000000 + tonumber(time[2])
local token, reason = mint(KEYS[2], now_us, math.max(left_ms, 0), ARGV[3])
if not token then
  if before then
    redis.call('SET', KEYS[2], before, 'KEEPTTL')
  elseif before == false then
    redis.call('DEL', KEYS[2])
  end
  return redis.error_reply('FENCE counter ' .. reason)
end
if (tonumber(token) or 0) <= floor then
  return redis.error_reply('FENCE counter gave ' .. token .. ', which is not greater than ' .. ARGV[2])
end
return token
