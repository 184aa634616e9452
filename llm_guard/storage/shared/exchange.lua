-- One exchange of a gateway: publishes its content, takes leases, and returns what the others have published.
-- KEYS: the contents by replica, the leases by subject, the overrides, for their version (overrides.lua).
-- ARGV: replica, content, milliseconds after which a content is stale, then pairs of a
-- subject and the milliseconds for which its lease is wanted.
local at = redis.call('TIME')
local now = at[1] * 1000 + math.floor(at[2] / 1000)
local me, stale_ms, longest_ms = ARGV[1], tonumber(ARGV[3]), 10000

redis.call('HSET', KEYS[1], me, string.format('%d', now) .. ':' .. ARGV[2])
redis.call('PEXPIRE', KEYS[1], 60000)

local others, found = {}, redis.call('HGETALL', KEYS[1])
for n = 1, #found, 2 do
  local replica, said = found[n], found[n + 1]
  local mark = string.find(said, ':', 1, true)
  local since = mark and tonumber(string.sub(said, 1, mark - 1))
  -- A date in the future is nonsense, or the server's clock has been set back. The comparison is false for NaN.
  if not since or not (now - since <= stale_ms and since - now <= 1000) then
    redis.call('HDEL', KEYS[1], replica)
  elseif replica ~= me then
    others[#others + 1] = { replica, math.max(0, now - since), string.sub(said, mark + 1) }
  end
end

local held, taken = {}, {}
for n = 4, #ARGV, 2 do
  local subject, wanted_ms = ARGV[n], tonumber(ARGV[n + 1])
  local lease = redis.call('HGET', KEYS[2], subject)
  local mark = lease and string.find(lease, ':', 1, true)
  local ends = mark and tonumber(string.sub(lease, 1, mark - 1)) or 0
  if not (ends > now and ends <= now + longest_ms) or string.sub(lease, mark + 1) == me then
    redis.call('HSET', KEYS[2], subject, string.format('%d', now + wanted_ms) .. ':' .. me)
    held[#held + 1] = { subject, wanted_ms }
  else
    taken[#taken + 1] = { subject, ends - now }
  end
end
if #held > 0 then
  redis.call('PEXPIRE', KEYS[2], 60000)
end
local said = redis.pcall('HGET', KEYS[3], '')
local version = type(said) == 'string' and tonumber(said) or 0
return { others, held, taken, version >= 0 and version <= now + 1000 and version or 0 }
