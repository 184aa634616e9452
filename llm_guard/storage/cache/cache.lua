-- The operations of `storage.cache.redis_cache`, each of them atomic. KEYS: a prefix. ARGV: the operation, and its
-- arguments. An entry is the hash `entry:KEY`, and a member `KEY:SIZE:ROUTE` of these sorted sets:
--   ends     by the instant at which it expires
--   used     by the instant of its last use
-- `totals` counts entries and bytes by route. Entries do not end by themselves: a server that evicts keys which do would
-- leave their members here. Fractions are passed as text: a script cannot return them.
local prefix = KEYS[1]
local ENDS, USED, TOTALS = prefix .. 'ends', prefix .. 'used', prefix .. 'totals'
local SOME = 64

local function entry_key(key)
  return prefix .. 'entry:' .. key
end

local function parsed(member)
  local key, size, route = string.match(member, '^(%x+):(%d+):(.*)$')
  return key, tonumber(size), route
end

local function count(route, entries, bytes)
  redis.call('HINCRBY', TOTALS, 'size:' .. route, bytes)
  if redis.call('HINCRBY', TOTALS, 'count:' .. route, entries) <= 0 then
    redis.call('HDEL', TOTALS, 'size:' .. route, 'count:' .. route)
  end
end

local function remove(member)
  local key, size, route = parsed(member)
  local is_there = redis.call('ZREM', ENDS, member)
  redis.call('ZREM', USED, member)
  if redis.call('HGET', entry_key(key), 'member') == member then
    redis.call('DEL', entry_key(key))
  end
  if is_there == 1 then
    count(route, -1, -size)
  end
  return size
end

local function held()
  local bytes, totals = 0, redis.call('HGETALL', TOTALS)
  for n = 1, #totals, 2 do
    if string.sub(totals[n], 1, 5) == 'size:' then
      bytes = bytes + tonumber(totals[n + 1])
    end
  end
  return bytes
end

-- Removes some expired entries, and the least recently used ones until the rest fits. Returns both numbers.
local function make_room(now, most, limit)
  local gone, evicted, bytes = 0, 0, 0
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', ENDS, '-inf', now, 'LIMIT', 0, limit)) do
    remove(member)
    gone = gone + 1
  end
  bytes = held()
  while bytes > most and evicted < limit do
    local member = redis.call('ZRANGE', USED, 0, 0)[1]
    if not member then
      break
    end
    bytes, evicted = bytes - remove(member), evicted + 1
  end
  return gone, evicted
end

local function changed(gone, evicted)
  return { redis.call('HGETALL', TOTALS), gone, evicted }
end

local operations = {}

-- Key, now. Returns the content and the instant at which it was stored.
function operations.get()
  local found = redis.call('HMGET', entry_key(ARGV[2]), 'content', 'stored_at', 'ends_at')
  if not found[1] or tonumber(found[3]) <= tonumber(ARGV[3]) then
    return false
  end
  return { found[1], found[2] }
end

-- Key, route, now, seconds that it lasts, its size, content, bytes that all may take, then pairs of a key and the instant
-- at which its entry was used.
function operations.put()
  local key, now, size, most = ARGV[2], tonumber(ARGV[4]), tonumber(ARGV[6]), tonumber(ARGV[8])
  for at = 9, #ARGV, 2 do
    local member = redis.call('HGET', entry_key(ARGV[at]), 'member')
    if member then
      redis.call('ZADD', USED, 'XX', 'GT', ARGV[at + 1], member)
    end
  end
  local before = redis.call('HGET', entry_key(key), 'member')
  if before then
    remove(before)
  end
  local gone, evicted = make_room(now, size <= most and most - size or math.huge, SOME)
  if size <= most then
    local member, ends_at = string.format('%s:%d:%s', key, size, ARGV[3]), now + tonumber(ARGV[5])
    redis.call('HSET', entry_key(key), 'member', member, 'stored_at', ARGV[4], 'ends_at', ends_at, 'content', ARGV[7])
    if redis.call('ZADD', ENDS, ends_at, member) == 1 then -- 0: its entry was deleted by something else, not its member
      count(ARGV[3], 1, size)
    end
    redis.call('ZADD', USED, ARGV[4], member)
  end
  return changed(gone, evicted)
end

-- Now, bytes that all may take, limit.
function operations.forget_ended()
  return changed(make_room(tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])))
end

-- Whether one route is meant (1) or all (0), the route, limit, and the place from which members are read. Returns the next
-- place as well: 0 at the end.
function operations.purge()
  local scanned, gone = redis.call('ZSCAN', ENDS, ARGV[5], 'COUNT', ARGV[4]), 0
  for n = 1, #scanned[2], 2 do
    local _, _, route = parsed(scanned[2][n])
    if ARGV[2] == '0' or route == ARGV[3] then
      remove(scanned[2][n])
      gone = gone + 1
    end
  end
  local found = changed(gone, 0)
  found[4] = scanned[1]
  return found
end

return operations[ARGV[1]]()
