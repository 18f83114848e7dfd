(* Records with strings and arrays, gone through twice; the argument is how many. *)
type row = { number : int; mutable name : string; parts : int array; mutable sum : int }

let () =
  let count = int_of_string Sys.argv.(1) in
  let rows =
    Array.init count (fun at ->
        let number = at + 1 in
        { number; name = "row number " ^ string_of_int number; parts = Array.init 8 (fun part -> number * (part + 1)); sum = 0 })
  in
  Array.iter (fun row -> row.sum <- Array.fold_left ( + ) 0 row.parts; row.name <- row.name ^ "!") rows;
  let sum, letters =
    Array.fold_left (fun (sum, letters) row -> (((sum * 31) + row.sum) mod 1000000007, letters + String.length row.name)) (0, 0) rows
  in
  Printf.printf "%d %d\n" sum letters
