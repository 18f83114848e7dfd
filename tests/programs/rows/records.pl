# Records with strings and arrays, gone through twice; the argument is how many.
use strict;
use warnings;
my ($count) = @ARGV;
my @rows;
for my $number (1 .. $count) {
    push @rows, { number => $number, name => "row number $number", parts => [ map { $number * $_ } 1 .. 6 ] };
}
my ($sum, $letters) = (0, 0);
for my $row (@rows) {
    $row->{sum} = 0;
    $row->{sum} += $_ for @{ $row->{parts} };
    $row->{name} .= "!";
}
for my $row (@rows) {
    $sum = ($sum * 31 + $row->{sum}) % 1000000007;
    $letters += length $row->{name};
}
print "$sum $letters\n";
