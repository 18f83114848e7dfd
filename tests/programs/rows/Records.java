// Records with strings and arrays, gone through twice; the argument is how many.
import java.util.ArrayList;

public class Records {
    static final class Row {
        final int number;
        String name;
        final long[] parts = new long[8];
        long sum;

        Row(int number) {
            this.number = number;
            name = "row number " + number;
            for (int part = 0; part < parts.length; part++) parts[part] = (long) number * (part + 1);
        }
    }

    public static void main(String[] arguments) {
        int count = Integer.parseInt(arguments[0]);
        ArrayList<Row> rows = new ArrayList<>();
        for (int number = 1; number <= count; number++) rows.add(new Row(number));
        for (Row row : rows) {
            for (long part : row.parts) row.sum += part;
        }
        long sum = 0, letters = 0;
        for (Row row : rows) {
            sum = (sum * 31 + row.sum) % 1000000007L;
            letters += row.name.length();
        }
        System.out.println(sum + " " + letters);
    }
}
