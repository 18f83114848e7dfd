-- Records with strings and arrays, gone through twice; the arguments are how many, and how many different names they have. For Lua and LuaJIT.
local count, names = tonumber(arg[1]), tonumber(arg[2])
local rows = {}
for number = 1, count do
    rows[number] = { number = number, name = "row number " .. number % names, parts = { number, number * 2, number * 3, number * 4 } }
end
for _, row in ipairs(rows) do
    local sum = 0
    for _, part in ipairs(row.parts) do sum = sum + part end
    row.sum = sum
end
local sum, letters = 0, 0
for _, row in ipairs(rows) do
    sum = (sum * 31 + row.sum) % 1000000007
    letters = letters + #row.name
end
print(string.format("%d %d", sum, letters))
