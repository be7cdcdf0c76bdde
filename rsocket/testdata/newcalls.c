// A library for TestGuestForeign, preloaded before librspreload.so. It replaces calls that the
// latter (of rdma-core 44) leaves to TCP by those that it takes over.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/socket.h>

static int nonblocking(int s, int flags) {
	if (s >= 0 && flags & SOCK_NONBLOCK) {
		fcntl(s, F_SETFL, O_NONBLOCK);
	}
	return s;
}

int socket(int domain, int type, int protocol) {
	int (*next)(int, int, int) = (int (*)(int, int, int))dlsym(RTLD_NEXT, "socket");
	int flags = domain == AF_INET || domain == AF_INET6 ? type & (SOCK_NONBLOCK | SOCK_CLOEXEC) : 0;
	return nonblocking(next(domain, type & ~flags, protocol), flags);
}

int accept4(int s, struct sockaddr *address, socklen_t *length, int flags) {
	return nonblocking(accept(s, address, length), flags);
}
