//go:build linux && cgo && verbs

// Go gets memory by mmap and munmap of the C library. UCX and libfabric patch the code of these
// functions while the program runs, and a thread that is in one of them then crashes. So the
// linker (LDFLAGS in context.go) binds Go's calls to the functions below.

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

void *__wrap_mmap(void *address, size_t length, int protection, int flags, int fd, off_t offset);
int __wrap_munmap(void *address, size_t length);

void *__wrap_mmap(void *address, size_t length, int protection, int flags, int fd, off_t offset)
{
	return (void *)syscall(SYS_mmap, address, length, protection, flags, fd, offset);
}

int __wrap_munmap(void *address, size_t length)
{
	return syscall(SYS_munmap, address, length);
}
