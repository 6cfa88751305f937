-- mint (issuer clock): token = max(last + 1, server time in microseconds).
-- counter    counter key                string: last token, with an expiry
-- now_us     server time in microseconds
-- lease_ms   lease in milliseconds, 0 for a lease without end
-- argument   retention in milliseconds, > 0
-- Returns    the token as a string of digits, or nil and the reason why there is none
--
-- A counter that vanished restarts at the clock, above every token issued before it. One that runs ahead of the
-- clock is kept until the clock has passed it.
local function mint(counter, now_us, lease_ms, argument)
  local last, reason = read_counter(counter)
  if not last then
    return nil, reason
  end
  local token = math.max(last + 1, now_us)
  if token >= MAX_TOKEN then
    return nil, 'would leave the range of exact numbers (2^53)'
  end
  local ahead_ms = math.ceil((token - now_us) / 1000)
  local keep_ms = math.max(tonumber(argument), lease_ms, ahead_ms) + 1000
  local text = string.format('%.0f', token)
  redis.call('SET', counter, text, 'PX', string.format('%.0f', keep_ms))
  return text
end
