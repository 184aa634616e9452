-- The operations of `storage.calls.redis_store`, each of them atomic. KEYS: a prefix. ARGV: the operation, and its
-- arguments. A call is the hash `call:ID`, and a member `NUMBER:ID`, which sorts by number, of these sorted sets:
--   all, group:...   by the instant of receipt; a group has one purpose, state, route and kind of failure
--   due:...          queued calls, by the instant at which they are due; all calls of a set have one purpose, one home and one
--                    encryption key
--   leases           running calls, by the end of the lease
--   answered, dead   by the instant of the response; of receipt
--   untold:WEBHOOK   calls whose webhook was not notified of their state, by number
-- `alive` has the gateways that keep credentials of callers, by the instant until which they are taken to live.
-- `groups` and `dues` name the sets of these kinds. `totals` counts calls and bytes by purpose and state. `seen` is the latest
-- instant at which a gateway showed that it lives. Fractions are passed as text: a script cannot return them.
--
-- Each change begins with a ZREM. A server that has no memory left refuses a script at its first write if that could
-- take more, so calls can still be begun, ended and deleted, but not added.
local prefix = KEYS[1]
local INDEXED = {
  'number', 'purpose', 'state', 'kind', 'route', 'received_at', 'due_at', 'leased_until', 'answered_at', 'webhook', 'told',
  'size', 'runner', 'deadline_at', 'home', 'request.body.key',
}
local BARE = {
  'request_id', 'purpose', 'state', 'owner', 'owner.key', 'client', 'request', 'received_at', 'first_failed_at',
  'last_failed_at', 'attempts', 'rounds', 'due_at', 'deadline_at', 'ended', 'ended.key', 'answer', 'answered_at',
  'webhook', 'told', 'kind', 'route',
}
local SIZED = { 'request', 'ended', 'answer', 'request.body', 'ended.body', 'answer.body' }
local ROW_BYTES, CHUNK, ALL, ANY, NO_BODY = 500, 200, 1e6, '\0', '-'

local function key(name)
  return prefix .. name
end

local function call_key(id)
  return prefix .. 'call:' .. id
end

local function load(id)
  local values = redis.call('HMGET', call_key(id), unpack(INDEXED))
  if not values[1] then
    return nil
  end
  local call = { id = id, member = string.format('%016d:%s', values[1], id) }
  for n, name in ipairs(INDEXED) do
    call[name] = values[n] or nil
  end
  return call
end

local function id_of(member)
  return string.sub(member, 18)
end

local function group_of(call)
  return table.concat({ call.purpose, call.state, call.kind or '', call.route }, '\n')
end

local function due_of(call)
  local has_body = redis.call('HEXISTS', call_key(call.id), 'request.body') == 1
  return table.concat({ call.purpose, call.home or '', has_body and (call['request.body.key'] or '') or NO_BODY }, '\n')
end

local function places_of(call)
  local places = { { 'all', call.received_at }, { 'group:' .. group_of(call), call.received_at } }
  if call.state == 'queued' then
    places[3] = { 'due:' .. due_of(call), call.due_at }
  elseif call.state == 'running' then
    places[3] = { 'leases', call.leased_until }
  else
    places[3] = { call.state, call.state == 'answered' and call.answered_at or call.received_at }
    if call.webhook and call.told ~= call.state then
      places[4] = { 'untold:' .. call.webhook, call.number }
    end
  end
  return places
end

local function count(call, sign)
  local of = call.purpose .. '/' .. call.state
  redis.call('HINCRBY', key('totals'), 'size:' .. of, sign * tonumber(call.size))
  if redis.call('HINCRBY', key('totals'), 'count:' .. of, sign) == 0 then
    redis.call('HDEL', key('totals'), 'size:' .. of, 'count:' .. of)
  end
end

local function enter(id)
  local size = ROW_BYTES
  for _, field in ipairs(SIZED) do
    size = size + redis.call('HSTRLEN', call_key(id), field)
  end
  redis.call('HSET', call_key(id), 'size', size)
  local call = load(id)
  for _, place in ipairs(places_of(call)) do
    redis.call('ZADD', key(place[1]), place[2], call.member)
  end
  redis.call('SADD', key('groups'), group_of(call))
  if call.state == 'queued' then
    redis.call('SADD', key('dues'), due_of(call))
  end
  count(call, 1)
end

local function leave(call)
  for _, place in ipairs(places_of(call)) do
    redis.call('ZREM', key(place[1]), call.member)
  end
  if redis.call('EXISTS', key('group:' .. group_of(call))) == 0 then
    redis.call('SREM', key('groups'), group_of(call))
  end
  if call.state == 'queued' and redis.call('EXISTS', key('due:' .. due_of(call))) == 0 then
    redis.call('SREM', key('dues'), due_of(call))
  end
  count(call, -1)
end

-- Changes a call: `set` is a list of fields and values, `drop` a list of fields.
local function change(call, set, drop)
  leave(call)
  if #set > 0 then
    redis.call('HSET', call_key(call.id), unpack(set))
  end
  if #drop > 0 then
    redis.call('HDEL', call_key(call.id), unpack(drop))
  end
  enter(call.id)
end

local function remove(call)
  leave(call)
  redis.call('DEL', call_key(call.id))
end

local function is_readable(id, keys)
  if redis.call('HEXISTS', call_key(id), 'request.body') == 0 then
    return false
  end
  local sealed_with = redis.call('HGET', call_key(id), 'request.body.key')
  return not sealed_with or keys[sealed_with] == true
end

local function bare(id)
  local values, found = redis.call('HMGET', call_key(id), unpack(BARE)), { 'id', id }
  for n, name in ipairs(BARE) do
    if values[n] then
      found[#found + 1] = name
      found[#found + 1] = values[n]
    end
  end
  return found
end

-- ARGV[first] is a number of values, which follow; returns them, also as a set, and the place behind them.
local function list(first)
  local values, set, last = {}, {}, first + tonumber(ARGV[first])
  for n = first + 1, last do
    values[#values + 1] = ARGV[n]
    set[ARGV[n]] = true
  end
  return values, set, last + 1
end

-- The filter that begins at ARGV[first]: purpose, state, route, kind, since, until (ANY: any), then ids (-1: any).
local function filter(first)
  local wanted = { since = tonumber(ARGV[first + 4]) or '-inf', till = tonumber(ARGV[first + 5]) or '+inf' }
  wanted.purpose, wanted.state, wanted.route, wanted.kind = unpack(ARGV, first, first + 3)
  if tonumber(ARGV[first + 6]) >= 0 then
    wanted.ids = list(first + 6)
  end
  return wanted
end

-- Returns whether a call, or a group of calls, is of the kind that is wanted.
local function is_such(call, wanted)
  for _, name in ipairs({ 'purpose', 'state', 'route', 'kind' }) do
    if wanted[name] ~= ANY and wanted[name] ~= (call[name] or '') then
      return false
    end
  end
  return true
end

local function is_in_time(call, wanted)
  local at = tonumber(call.received_at)
  return (wanted.since == '-inf' or at >= wanted.since) and (wanted.till == '+inf' or at <= wanted.till)
end

local function is_older(call, other)
  local at, its = tonumber(call.received_at), tonumber(other.received_at)
  return at < its or (at == its and call.member < other.member)
end

-- Appends accepted calls of a sorted set with scores from `least` to `most` to `found`, in its order, up to `limit`.
local function scan(name, is_reversed, least, most, limit, accepts, found)
  local offset, last = 0, #found + limit
  while #found < last do
    local members
    if is_reversed then
      members = redis.call('ZREVRANGEBYSCORE', key(name), most, least, 'LIMIT', offset, CHUNK)
    else
      members = redis.call('ZRANGEBYSCORE', key(name), least, most, 'LIMIT', offset, CHUNK)
    end
    for _, member in ipairs(members) do
      local call = load(id_of(member))
      if not call then
        redis.call('ZREM', key(name), member) -- its hash was deleted by something else
      elseif #found < last and accepts(call) then
        found[#found + 1] = call
      end
    end
    if #members < CHUNK then
      return
    end
    offset = offset + CHUNK
  end
end

-- Returns up to `limit` calls that the filter matches and `accepts` takes: the oldest first, or the newest.
local function select(wanted, is_newest_first, limit, accepts)
  local found = {}
  for _, id in ipairs(wanted.ids or {}) do
    local call = load(id)
    if call and is_such(call, wanted) and is_in_time(call, wanted) and accepts(call) then
      found[#found + 1] = call
    end
  end
  for _, group in ipairs(wanted.ids and {} or redis.call('SMEMBERS', key('groups'))) do
    local of = {}
    of.purpose, of.state, of.kind, of.route = string.match(group, '^(.-)\n(.-)\n(.-)\n(.*)$')
    if is_such(of, wanted) then
      scan('group:' .. group, is_newest_first, wanted.since, wanted.till, limit, accepts, found)
    end
  end
  table.sort(found, function(one, other)
    if is_newest_first then
      one, other = other, one
    end
    return is_older(one, other)
  end)
  while #found > limit do
    table.remove(found)
  end
  return found
end

local function ids_of(calls)
  local ids = {}
  for n, call in ipairs(calls) do
    ids[n] = call.id
  end
  return ids
end

-- Notes that a gateway lives now, and until when it is taken to live if it keeps credentials (else 0).
local function note_alive(runner, now, till)
  redis.call('ZREM', key('alive'), '') -- a first write that is allowed while memory is short
  if tonumber(till) > 0 then
    redis.call('ZADD', key('alive'), 'GT', till, runner)
  end
  if now > (tonumber(redis.call('GET', key('seen'))) or 0) then
    redis.call('SET', key('seen'), now)
  end
end

-- The sets of queued calls for which a gateway has the key, or with `has_key` false those for which it has none.
local function due_sets(purpose, keys, has_key, is_home)
  local names = {}
  for _, name in ipairs(redis.call('SMEMBERS', key('dues'))) do
    local of, home, sealed_with = string.match(name, '^(.-)\n(.-)\n(.*)$')
    local is_readable = sealed_with == '' or keys[sealed_with] == true
    if (purpose == ANY or of == purpose) and is_readable == has_key and is_home(home) then
      names[#names + 1] = 'due:' .. name
    end
  end
  return names
end

-- The call of the first member, or the last one, that has a hash.
local function first_of(name, is_newest)
  while true do
    local member = redis.call('ZRANGE', name, is_newest and -1 or 0, is_newest and -1 or 0)[1]
    local call = member and load(id_of(member))
    if call or not member then
      return call
    end
    redis.call('ZREM', name, member)
  end
end

local operations = {}

-- Runner, instant until which it is taken to live if it is the home of one of the calls (else 0), number of calls, then for
-- each its id, the number of its fields and values, and these.
function operations.add()
  local at, new, seen = 5, {}, {}
  for _ = 1, tonumber(ARGV[4]) do
    local id, size = ARGV[at], tonumber(ARGV[at + 1])
    if seen[id] or redis.call('EXISTS', call_key(id)) == 1 then
      return id
    end
    seen[id] = true
    new[#new + 1] = { id, at + 2, at + 1 + size }
    at = at + 2 + size
  end
  for _, call in ipairs(new) do
    local number = redis.call('INCR', key('number'))
    redis.call('HSET', call_key(call[1]), 'number', number, unpack(ARGV, call[2], call[3]))
    enter(call[1])
  end
  note_alive(ARGV[2], 0, ARGV[3])
  return false
end

-- Id.
function operations.get()
  return redis.call('HGETALL', call_key(ARGV[2]))
end

-- Limit, id of the call before them (empty: none), filter.
function operations.find()
  local before = ARGV[3] ~= '' and load(ARGV[3])
  if ARGV[3] ~= '' and not before then
    return {}
  end
  local wanted = filter(4)
  if before and (wanted.till == '+inf' or wanted.till > tonumber(before.received_at)) then
    wanted.till = tonumber(before.received_at)
  end
  local found = select(wanted, true, tonumber(ARGV[2]), function(call)
    return not before or is_older(call, before)
  end)
  for n, call in ipairs(found) do
    found[n] = bare(call.id)
  end
  return found
end

function operations.stats()
  local oldest = first_of(key('all'), false)
  return { redis.call('HGETALL', key('totals')), oldest and oldest.received_at or '' }
end

function operations.groups()
  local found = {}
  for _, group in ipairs(redis.call('SMEMBERS', key('groups'))) do
    local name = key('group:' .. group)
    local first, last = first_of(name, false), first_of(name, true)
    if first then
      found[#found + 1] = { group, redis.call('ZCARD', name), first.received_at, last.received_at }
    end
  end
  return found
end

-- Now, limit, end of the lease, runner, purpose (ANY: any), instant until which it is taken to live (0: it has no
-- credentials), keys.
function operations.begin()
  local now, limit = tonumber(ARGV[2]), tonumber(ARGV[3])
  local _, keys = list(8)
  local due = {}
  local names = due_sets(ARGV[6], keys, true, function(home)
    return home == '' or home == ARGV[5] or (tonumber(redis.call('ZSCORE', key('alive'), home)) or 0) <= now
  end)
  for _, name in ipairs(names) do
    scan(name, false, '-inf', ARGV[2], limit, function()
      return true
    end, due)
  end
  table.sort(due, function(one, other)
    local at, its = tonumber(one.due_at), tonumber(other.due_at)
    return at < its or (at == its and one.member < other.member)
  end)
  local begun = {}
  for n = 1, math.min(limit, #due) do
    change(due[n], { 'state', 'running', 'runner', ARGV[5], 'leased_until', ARGV[4] }, { 'due_at' })
    redis.call('HINCRBY', call_key(due[n].id), 'rounds', 1)
    begun[n] = redis.call('HGETALL', call_key(due[n].id))
    begun[n][#begun[n] + 1] = 'id'
    begun[n][#begun[n] + 1] = due[n].id
  end
  note_alive(ARGV[5], now, ARGV[7])
  return begun
end

-- Now. After a time in which no gateway could reach the server: what would have been renewed in it has not ended.
function operations.resume()
  local seen = tonumber(redis.call('GET', key('seen'))) or tonumber(ARGV[2])
  local gap = tonumber(ARGV[2]) - seen
  if gap <= 0 then
    return
  end
  local running = {}
  scan('leases', false, seen, '+inf', ALL, function()
    return true
  end, running)
  for _, call in ipairs(running) do
    change(call, { 'leased_until', tonumber(call.leased_until) + gap }, {})
  end
  for _, runner in ipairs(redis.call('ZRANGEBYSCORE', key('alive'), seen, '+inf')) do
    redis.call('ZINCRBY', key('alive'), gap, runner)
  end
  redis.call('SET', key('seen'), ARGV[2])
end

-- Runners that keep no credentials any more.
function operations.leave()
  redis.call('ZREM', key('alive'), unpack(ARGV, 2))
end

-- Now, runner, and the calls that it knows to run: all others that it runs were begun by a request whose response was
-- lost, so they were not sent.
function operations.unbegin()
  local _, known = list(4)
  local lost = {}
  scan('leases', false, '-inf', '+inf', ALL, function(call)
    return call.runner == ARGV[3] and not known[call.id]
  end, lost)
  for _, call in ipairs(lost) do
    change(call, { 'state', 'queued', 'due_at', ARGV[2] }, { 'runner', 'leased_until' })
    redis.call('HINCRBY', call_key(call.id), 'rounds', -1)
  end
  return #lost
end

-- End of the leases, runner, ids. Returns those that do not run there.
function operations.extend()
  local gone = {}
  for _, id in ipairs((list(4))) do
    local call = load(id)
    if call and call.state == 'running' and call.runner == ARGV[3] then
      change(call, { 'leased_until', ARGV[2] }, {})
    else
      gone[#gone + 1] = id
    end
  end
  return gone
end

-- Triples of an id, a due time and a deadline.
function operations.reschedule()
  for at = 2, #ARGV, 3 do
    local call = load(ARGV[at])
    if call and call.state == 'queued' then
      change(call, { 'due_at', ARGV[at + 1], 'deadline_at', ARGV[at + 2] }, {})
    elseif call and call.state == 'running' then
      change(call, { 'deadline_at', ARGV[at + 2] }, {})
    end
  end
end

-- Id, state that it must have, runner that it must have (empty: any), instant by which its lease must have ended (empty:
-- none), attempts that are added, instant of a failure (empty: none), name of this move, fields and values, fields that are
-- dropped. A move that is repeated, since its response was lost, succeeds.
function operations.move()
  local call, runner, ended_by, failed_at = load(ARGV[2]), ARGV[4], tonumber(ARGV[5]), ARGV[7]
  if call and ARGV[8] ~= '' and redis.call('HGET', call_key(call.id), 'move') == ARGV[8] then
    return 1
  end
  if
    not call
    or call.state ~= ARGV[3]
    or (runner ~= '' and call.runner ~= runner)
    or (ended_by and tonumber(call.leased_until) > ended_by)
  then
    return 0
  end
  local set, _, behind = list(9)
  change(call, set, (list(behind)))
  redis.call('HSET', call_key(call.id), 'move', ARGV[8])
  redis.call('HINCRBY', call_key(call.id), 'attempts', ARGV[6])
  if failed_at ~= '' then
    redis.call('HSETNX', call_key(call.id), 'first_failed_at', failed_at)
    redis.call('HSET', call_key(call.id), 'last_failed_at', failed_at)
  end
  return 1
end

-- Now, seconds between two, calls that are queued before them (empty: those that wait), limit, keys, filter. Returns the
-- number for the next ones, and the ids.
function operations.requeue()
  local now, pace, ahead, waiting = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), 0
  local _, keys, behind = list(6)
  for _, name in ipairs(ahead and {} or redis.call('SMEMBERS', key('dues'))) do
    if string.match(name, '^(.-)\n') == 'dead_letter' then
      waiting = waiting + redis.call('ZCOUNT', key('due:' .. name), '(' .. ARGV[2], '+inf')
    end
  end
  ahead = ahead or waiting
  local found = select(filter(behind), false, tonumber(ARGV[5]), function(call)
    return call.state == 'dead' and is_readable(call.id, keys)
  end)
  for n, call in ipairs(found) do
    change(call, { 'state', 'queued', 'due_at', now + pace * (ahead + n - 1) }, { 'deadline_at' })
  end
  return { ahead + #found, ids_of(found) }
end

-- Limit, whether running calls are deleted too (0 or 1), filter.
function operations.delete()
  local found = select(filter(4), false, tonumber(ARGV[2]), function(call)
    return ARGV[3] == '1' or call.state ~= 'running'
  end)
  for _, call in ipairs(found) do
    remove(call)
  end
  return #found
end

-- Id, state.
function operations.mark_notified()
  local call = load(ARGV[2])
  if call then
    change(call, { 'told', ARGV[3] }, {})
  end
end

-- Webhook, limit.
function operations.unnotified()
  local found = redis.call('ZRANGE', key('untold:' .. ARGV[2]), 0, tonumber(ARGV[3]) - 1)
  for n, member in ipairs(found) do
    found[n] = bare(id_of(member))
  end
  return found
end

-- Now, runner, instant until which it is taken to live (0: it has no credentials), runners that have ended. Returns each
-- call whose lease or runner has ended, with its runner and purpose, and whether it is repeatable.
function operations.lost()
  local now = tonumber(ARGV[2])
  local runners, ended = list(5)
  note_alive(ARGV[3], now, ARGV[4])
  if #runners > 0 then
    redis.call('ZREM', key('alive'), unpack(runners))
  end
  local found = {}
  scan('leases', false, '-inf', '+inf', ALL, function(call)
    return tonumber(call.leased_until) <= now or ended[call.runner]
  end, found)
  for n, call in ipairs(found) do
    found[n] = { call.id, call.runner, call.purpose, redis.call('HGET', call_key(call.id), 'is_repeatable') }
  end
  return found
end

-- Instants before which responses and receipts are too old, now, bytes that dead calls may take, limit. Returns the number
-- of calls that it has deleted.
function operations.sweep()
  local answered, received, now, most, limit =
    tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
  local doomed = {}
  for _, range in ipairs({ { 'answered', answered }, { 'dead', received } }) do
    for _, member in ipairs(redis.call('ZRANGEBYSCORE', key(range[1]), '-inf', range[2], 'LIMIT', 0, limit)) do
      local call = load(id_of(member))
      if call then
        doomed[#doomed + 1] = call
      else
        redis.call('ZREM', key(range[1]), member)
      end
    end
  end
  for _, group in ipairs(redis.call('SMEMBERS', key('groups'))) do
    if string.match(group, '^.-\n(.-)\n') == 'queued' then
      scan('group:' .. group, false, '-inf', ARGV[3], limit, function(call)
        return (tonumber(call.deadline_at) or 0) <= now
      end, doomed)
    end
  end
  for _, call in ipairs(doomed) do
    remove(call)
  end
  local size, gone = 0, #doomed
  for _, purpose in ipairs({ 'dead_letter', 'deferred' }) do
    size = size + (tonumber(redis.call('HGET', key('totals'), 'size:' .. purpose .. '/dead')) or 0)
  end
  while size > most and gone < limit do
    local call = first_of(key('dead'), false)
    if not call then
      break
    end
    size, gone = size - tonumber(call.size), gone + 1
    remove(call)
  end
  return gone
end

-- Now, keys. Returns queued calls that cannot be sent with these keys, and whose deadline has passed, with their purpose.
function operations.overdue()
  local now, found = tonumber(ARGV[2]), {}
  local _, keys = list(3)
  local names = due_sets(ANY, keys, false, function()
    return true
  end)
  for _, name in ipairs(names) do
    scan(name, false, '-inf', '+inf', CHUNK, function(call)
      return call.deadline_at and tonumber(call.deadline_at) <= now
    end, found)
  end
  for n, call in ipairs(found) do
    found[n] = { call.id, call.purpose }
  end
  return found
end

return operations[ARGV[1]]()
