<?php
// Records with strings and arrays, gone through twice; the argument is how many.
ini_set('memory_limit', '-1');
$count = (int) $argv[1];
$rows = [];
for ($number = 1; $number <= $count; $number++) {
    $parts = [];
    for ($part = 1; $part <= 6; $part++) {
        $parts[] = $number * $part;
    }
    $rows[] = ['number' => $number, 'name' => "row number $number", 'parts' => $parts];
}
foreach ($rows as &$row) {
    $row['sum'] = array_sum($row['parts']);
    $row['name'] .= '!';
}
unset($row);
$sum = 0;
$letters = 0;
foreach ($rows as $row) {
    $sum = ($sum * 31 + $row['sum']) % 1000000007;
    $letters += strlen($row['name']);
}
echo "$sum $letters\n";
