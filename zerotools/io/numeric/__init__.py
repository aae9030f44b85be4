"""Elements of tensors: numpy's dtypes, casts, single numbers, and gathering elements from files.

dtype_casts         the numpy dtype of each `DType`, and casts between them
torch_float16_cast  casts of large tensors by torch's kernel
gather_elements     reads elements from any positions in files
join_small_reads    copies small parts that are equally far apart in a file as one strided array
quantised_values    values from payload and scales, and the reverse
compare_values      the distance of two arrays; counts of NaN and infinities
value_statistics    smallest, largest, mean, norm, counts and histogram of arrays
scalar_tensors      single numbers
number_file         a file of integers of one dtype

The only package of `io` that imports numpy. Imports `core` and `io.files`.
"""
