/* sizes SIZE: prints a size in bytes, or says why it is none, as every program here reads it. */
#include "common.h"

int main(int argc, char **argv)
{
    if (argc != 2) die("usage: sizes SIZE");
    printf("%zu\n", parse_size(argv[1]));
    return 0;
}
