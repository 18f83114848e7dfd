%% A table of records, and a list of binaries, gone through; the argument is how many.
-module(records).
-export([main/1]).

main([Text]) ->
    Count = list_to_integer(Text),
    Table = ets:new(rows, [set]),
    [ets:insert(Table, {Number, <<"row number ", (integer_to_binary(Number))/binary>>, {Number, Number * 2, Number * 3}}) || Number <- lists:seq(1, Count)],
    Blocks = [binary:copy(<<Number:32>>, 16384) || Number <- lists:seq(1, Count div 400)],
    {Sum, Letters} = lists:foldl(fun(Number, {Sum, Letters}) ->
        [{_, Name, {A, B, C}}] = ets:lookup(Table, Number),
        {(Sum * 31 + A + B + C) rem 1000000007, Letters + byte_size(Name)}
    end, {0, 0}, lists:seq(1, Count)),
    Crc = lists:foldl(fun(Block, Crc) -> erlang:crc32(Crc, Block) end, 0, Blocks),
    io:format("~b ~b ~b~n", [Sum, Letters, Crc]),
    halt(0).
