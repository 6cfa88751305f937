-- read_counter: the last token of a resource, checked before anything is written.
-- counter    counter key                string: last token
-- Returns    the last token as a number (0 for none), or nil and the reason why it cannot be used
local MAX_TOKEN = 9007199254740992

local function read_counter(counter)
  local stored = redis.pcall('GET', counter)
  if type(stored) == 'table' then
    return nil, 'has the wrong type: it is a ' .. redis.call('TYPE', counter).ok
  end
  if not stored then
    return 0
  end
  if not string.match(stored, '^%d+$') or (#stored > 1 and string.sub(stored, 1, 1) == '0') then
    return nil, 'is not a number: ' .. string.gsub(string.sub(stored, 1, 40), '[^%w%p ]', '?')
  end
  if #stored > 16 or tonumber(stored) >= MAX_TOKEN then
    return nil, 'is beyond the range of exact numbers (2^53): ' .. string.sub(stored, 1, 40)
  end
  return tonumber(stored)
end
