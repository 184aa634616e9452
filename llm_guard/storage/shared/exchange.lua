-- One exchange of a gateway: publishes its content, takes leases and slots, and returns what the others have published.
-- KEYS: the contents by replica, the leases by subject, the overrides, for their version (overrides.lua), the slots by
-- subject.
-- ARGV: replica, content, and in MessagePack: milliseconds after which a content is stale, milliseconds for which slots
-- are held, milliseconds of a turn, number of gateways that this one knows of, for each lease its subject and the
-- milliseconds for which it is wanted, and for each limit whose slots are shared its subject, the limit, the slots that
-- this replica holds, and its need.
-- Returns one string, since the client takes 5 us for each element of a request and a reply: the length of what follows
-- in MessagePack, in eight digits; all but the contents of the others in MessagePack; then these, one behind the other.
local at = redis.call('TIME')
local now = at[1] * 1000 + math.floor(at[2] / 1000)
local me, longest_ms = ARGV[1], 10000
local stale_ms, hold_ms, turn_ms, gateways, leases, requests = unpack(cmsgpack.unpack(ARGV[3]))

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
  elseif replica ~= me and #others < 256 then
    others[#others + 1] = { replica, math.max(0, now - since), #said - mark }
    contents[#contents + 1] = string.sub(said, mark + 1)
  end
end

local held, taken = {}, {}
for _, wanted in ipairs(leases) do
  local subject, wanted_ms = unpack(wanted)
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

-- As `granted` and `fair_shares` in resilience/capacity/slot_sharing.py. A holder is { slots held, need, end, limit }.
local turn = math.floor(now / turn_ms)

local function fair_share(limit, holders)
  local names, order, needing, shares, left = {}, {}, {}, {}, limit
  for replica in pairs(holders) do
    names[#names + 1] = replica
  end
  table.sort(names)
  for place = 1, #names do
    local name = names[(place - 1 + turn) % #names + 1]
    order[place] = { name, holders[name][2], place }
    if holders[name][2] > 0 then
      needing[#needing + 1] = name
    end
  end
  if limit < #needing then
    for place = 1, limit do
      shares[needing[place]] = 1
    end
    return shares[me] or 0
  end
  table.sort(order, function(a, b) return a[2] < b[2] or (a[2] == b[2] and a[3] < b[3]) end)
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

-- What other replicas hold that have asked lately. What cannot be read is not of this version.
local function holders_of(subject)
  local live = {}
  local is_read, found = pcall(cmsgpack.unpack, redis.call('HGET', KEYS[4], subject) or '\128')
  if is_read and type(found) == 'table' then
    for replica, one in pairs(found) do
      local is_known = type(replica) == 'string' and replica ~= me and type(one) == 'table'
      if is_known and is_count(one[1]) and is_count(one[2]) and is_count(one[4]) and type(one[3]) == 'number'
        and one[3] > now and one[3] <= now + longest_ms then
        live[replica] = one
      end
    end
  end
  return live
end

local grants = {}
for _, request in ipairs(requests) do
  local subject, own, holds, need = unpack(request)
  local holders, limit, held, known = holders_of(subject), own, 0, 1
  for _, one in pairs(holders) do
    limit, held, known = math.min(limit, one[4]), held + one[1], known + 1
  end
  local granted, fair = 0, 0
  if own > 0 then
    holders[me] = { holds, need, now + hold_ms, own }
    fair = fair_share(limit, holders)
    if known < gateways then
      fair = math.min(fair, math.floor(limit / gateways))
    end
    granted = math.max(holds, math.min(fair, limit - held))
    holders[me][1] = granted
  end
  redis.call('HSET', KEYS[4], subject, cmsgpack.pack(holders))
  grants[#grants + 1] = { subject, granted, fair }
end
if #grants > 0 then
  redis.call('PEXPIRE', KEYS[4], 60000)
end

local said = redis.pcall('HGET', KEYS[3], '')
local version = math.floor(type(said) == 'string' and tonumber(said) or 0)
version = version >= 0 and version <= now + 1000 and version or 0
local packed = cmsgpack.pack({ others, held, taken, version, grants })
return string.format('%08d', #packed) .. packed .. table.concat(contents)
