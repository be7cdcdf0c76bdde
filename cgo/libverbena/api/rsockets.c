// The functions of rsockets (rsocket(7)), which this library does not have. librdmacm's own do not
// work with the identifiers of this library: they know what librdmacm keeps behind an identifier.

#include <errno.h>
#include <poll.h>
#include <sys/select.h>

#include "verbena.h"

VB_EXPORT int rsocket(int domain, int type, int protocol)
{
	(void)domain, (void)type, (void)protocol;
	errno = EPROTONOSUPPORT;
	return -1;
}

// No descriptor is an rsocket. The result is long, since some of the functions return an int and
// others an ssize_t, a size_t or an off_t.
static long refuse(void)
{
	errno = EBADF;
	return -1;
}

#define REFUSED(name) VB_EXPORT __attribute__((alias("refuse"))) long name(void)

REFUSED(raccept);
REFUSED(rbind);
REFUSED(rclose);
REFUSED(rconnect);
REFUSED(rfcntl);
REFUSED(rgetpeername);
REFUSED(rgetsockname);
REFUSED(rgetsockopt);
REFUSED(riomap);
REFUSED(riounmap);
REFUSED(riowrite);
REFUSED(rlisten);
REFUSED(rread);
REFUSED(rreadv);
REFUSED(rrecv);
REFUSED(rrecvfrom);
REFUSED(rrecvmsg);
REFUSED(rsend);
REFUSED(rsendmsg);
REFUSED(rsendto);
REFUSED(rsetsockopt);
REFUSED(rshutdown);
REFUSED(rwrite);
REFUSED(rwritev);

// These also take other descriptors. Programs of rdmacm-utils use them for these only.

VB_EXPORT int rpoll(struct pollfd *files, nfds_t n, int timeout_ms)
{
	return poll(files, n, timeout_ms);
}

VB_EXPORT int rselect(int n, fd_set *readable, fd_set *writable, fd_set *exceptional, struct timeval *timeout)
{
	return select(n, readable, writable, exceptional, timeout);
}
