# Records with strings and arrays, gone through twice; the argument is how many.
count = ARGV[0].to_i
Row = Struct.new(:number, :name, :parts, :sum)
rows = []
1.upto(count) { |number| rows << Row.new(number, "row number #{number}, which has a name that is longer", (1..6).map { |part| number * part }) }
rows.each do |row|
  row.sum = row.parts.sum
  row.name << "!"
end
sum = letters = 0
rows.each do |row|
  sum = (sum * 31 + row.sum) % 1_000_000_007
  letters += row.name.length
end
puts "#{sum} #{letters}"
