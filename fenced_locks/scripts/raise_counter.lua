-- raise_counter: raise the counter of a resource to at least a token. Never lowers it.
-- KEYS[1]  lock key                     read only, for the rest of its lease
-- KEYS[2]  counter key                  string: last token
-- ARGV[1]  token, digits, < 2^53
-- ARGV[2]  retention in milliseconds, > 0; 0 for a counter without expiry
-- Replies  1 raised | 0 was there already, or above
--          error FENCE… the counter cannot be used; nothing was written
--
-- Needs the prelude read_counter. A counter that runs ahead of the clock is kept until the clock has passed it, and
-- as long as the lease that somebody has now.
local last, reason = read_counter(KEYS[2])
if not last then
  return redis.error_reply('FENCE counter ' .. reason)
end
local token = tonumber(ARGV[1])
if token >= MAX_TOKEN then
  return redis.error_reply('FENCE counter would leave the range of exact numbers (2^53)')
end
if last >= token then
  return 0
end
if ARGV[2] == '0' then
  redis.call('SET', KEYS[2], ARGV[1])
  return 1
end
local time = redis.call('TIME')
local now_us = tonumber(time[1]) * 1000000 + tonumber(time[2])
local ahead_ms = math.ceil((token - now_us) / 1000)
local keep_ms = math.max(tonumber(ARGV[2]), redis.call('PTTL', KEYS[1]), ahead_ms) + 1000
redis.call('SET', KEYS[2], ARGV[1], 'PX', string.format('%.0f', keep_ms))
return 1
