-- One exchange of a gateway: publishes its content, takes leases and slots, and returns what the others have published.
-- KEYS: the contents by replica, the leases by subject, the overrides, for their version (overrides.lua), the slots by
-- subject.
-- ARGV: replica, content, milliseconds after which a content is stale, milliseconds for which slots are held, number of
-- leases, then for each of them its subject and the milliseconds for which it is wanted, then for each limit whose slots
-- are shared its subject, the limit, the slots that this replica holds, and its need.
-- Returns all but the contents of the others in MessagePack, since the client takes 5 us for each element of a reply; then
-- the contents, in the order of their replicas.
local at = redis.call('TIME')
local now = at[1] * 1000 + math.floor(at[2] / 1000)
local me, stale_ms, longest_ms = ARGV[1], tonumber(ARGV[3]), 10000
local first_lease, first_slots = 6, 6 + 2 * tonumber(ARGV[5])

redis.call('HSET', KEYS[1], me, string.format('%d', now) .. ':' .. ARGV[2])
redis.call('PEXPIRE', KEYS[1], 60000)

local others, contents, found = {}, {}, redis.call('HGETALL', KEYS[1])
for n = 1, #found, 2 do
  local replica, said = found[n], found[n + 1]
  local mark = string.find(said, ':', 1, true)
  local since = mark and tonumber(string.sub(said, 1, mark - 1))
  -- A date in the future is nonsense, or the server's clock has been set back. The comparison is false for NaN.
  local is_current = since and now - since <= stale_ms and since - now <= 1000
  if not is_current or string.find(replica, '[^%w%p]') then
    redis.call('HDEL', KEYS[1], replica)
  elseif replica ~= me then
    others[#others + 1] = { replica, math.max(0, now - since) }
    contents[#contents + 1] = string.sub(said, mark + 1)
  end
end

local held, taken = {}, {}
for n = first_lease, first_slots - 1, 2 do
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

-- As `fair_shares` in resilience/capacity/slot_sharing.py.
local function fair_share(limit, holders)
  local order, shares, left = {}, {}, limit
  for replica, one in pairs(holders) do
    order[#order + 1] = { replica, one[2] }
  end
  table.sort(order, function(a, b) return a[2] < b[2] or (a[2] == b[2] and a[1] < b[1]) end)
  for place, one in ipairs(order) do
    shares[one[1]] = math.min(one[2], math.floor(left / (#order - place + 1)))
    left = left - shares[one[1]]
  end
  for place, one in ipairs(order) do
    local extra = math.floor(left / (#order - place + 1))
    shares[one[1]] = shares[one[1]] + extra
    left = left - extra
  end
  return shares[me]
end

local function is_count(number)
  return type(number) == 'number' and number >= 0 and number < 1e9 and number == math.floor(number)
end

-- Slots held and need of the other replicas that have asked lately. What cannot be read is not of this version.
local function holders_of(subject)
  local live = {}
  local is_read, found = pcall(cmsgpack.unpack, redis.call('HGET', KEYS[4], subject) or '\128')
  if is_read and type(found) == 'table' then
    for replica, one in pairs(found) do
      local is_known = type(replica) == 'string' and replica ~= me and type(one) == 'table'
      if is_known and is_count(one[1]) and is_count(one[2]) and type(one[3]) == 'number'
        and one[3] > now and one[3] <= now + longest_ms then
        live[replica] = one
      end
    end
  end
  return live
end

local grants, hold_ms = {}, tonumber(ARGV[4])
for n = first_slots, #ARGV, 4 do
  local subject, limit, holds, need = ARGV[n], tonumber(ARGV[n + 1]), tonumber(ARGV[n + 2]), tonumber(ARGV[n + 3])
  local holders, free = holders_of(subject), limit
  for _, one in pairs(holders) do
    free = free - one[1]
  end
  holders[me] = { holds, need, now + hold_ms }
  local fair = fair_share(limit, holders)
  holders[me][1] = math.max(holds, math.min(fair, free))
  redis.call('HSET', KEYS[4], subject, cmsgpack.pack(holders))
  grants[#grants + 1] = { subject, holders[me][1], fair }
end
if #grants > 0 then
  redis.call('PEXPIRE', KEYS[4], 60000)
end

local said = redis.pcall('HGET', KEYS[3], '')
local version = type(said) == 'string' and tonumber(said) or 0
version = version >= 0 and version <= now + 1000 and version or 0
return { cmsgpack.pack({ others, held, taken, version, grants }), unpack(contents) }
