;; Records with strings and vectors, gone through twice; the argument is how many.
(defstruct row number name parts (sum 0))

(let* ((count (parse-integer (car (last sb-ext:*posix-argv*))))
       (rows (make-array count))
       (sum 0)
       (letters 0))
  (dotimes (at count)
    (let ((number (1+ at)) (parts (make-array 8)))
      (dotimes (part 8) (setf (aref parts part) (* number (1+ part))))
      (setf (aref rows at)
            (make-row :number number :parts parts
                      :name (coerce (concatenate 'string "row number " (write-to-string number)) 'simple-base-string)))))
  (loop for row across rows do (setf (row-sum row) (reduce #'+ (row-parts row))))
  (loop for row across rows
        do (setf sum (mod (+ (* sum 31) (row-sum row)) 1000000007))
           (incf letters (length (row-name row))))
  (format t "~d ~d~%" sum letters))
