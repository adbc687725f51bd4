/*
 * Preloaded into rustc by script/package. Macros that make code from a HashMap, as Rustler's for enums do, make it in
 * another order each time, and the library is other bytes then. With the same random numbers it is the same. Only the
 * compiler has them, and nothing that it makes.
 */
#include <string.h>
#include <sys/types.h>

ssize_t getrandom(void *buffer, size_t length, unsigned int flags)
{
    (void)flags;
    memset(buffer, 42, length);
    return (ssize_t)length;
}
