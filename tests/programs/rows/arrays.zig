// Blocks from the page allocator and a static array, gone through twice; nothing but Linux beneath.
const std = @import("std");
const linux = std.os.linux;
const words = 12 << 20;
const blocks = 192;
var table: [words]u64 = undefined;

pub fn main() !void {
    var held: [blocks][]u64 = undefined;
    for (&held, 0..) |*block, number| {
        block.* = try std.heap.page_allocator.alloc(u64, 1 << 17);
        for (block.*, 0..) |*word, at| word.* = at *% 2654435761 +% number;
    }
    for (&table, 0..) |*word, at| word.* = at *% 40503;
    var sum: u64 = 0;
    for (0..2) |_| {
        for (held) |block| for (block) |*word| {
            word.* = word.* *% 31 +% 7;
            sum = sum *% 3 +% word.*;
        };
        for (&table) |*word| {
            word.* +%= 1;
            sum = sum *% 3 +% word.*;
        }
    }
    var text: [64]u8 = undefined;
    const line = try std.fmt.bufPrint(&text, "{d}\n", .{sum});
    _ = linux.write(1, line.ptr, line.len);
}
