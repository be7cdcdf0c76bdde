// This library is built with the headers of release 44. These functions were added by releases 45 to
// 65. A program would otherwise call those of the system's library, which take
// our objects for their own.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include "verbena.h"

// AS gives a function its symbol. Newer headers declare the same name in C, with structs of theirs.
#define AS(symbol) __asm__(#symbol) __attribute__((visibility("default")))

// What software devices do not have is refused in one of three ways.

static int refuse(void)
{
	errno = EOPNOTSUPP;
	return EOPNOTSUPP;
}

static void *refuse_object(void)
{
	return vb_fail(EOPNOTSUPP);
}

static int refuse_call(void)
{
	errno = EOPNOTSUPP;
	return -1;
}

#define REFUSED(type, symbol, how) type refused_##symbol(void) AS(symbol) __attribute__((alias(#how)))

// Hints for the DMA of adapters.
REFUSED(void *, ibv_alloc_dmah, refuse_object);
REFUSED(int, ibv_dealloc_dmah, refuse);
REFUSED(int, ibv_dm_export_dmabuf_fd, refuse_call);

REFUSED(int, _ibv_query_comp_cntr_caps, refuse);
REFUSED(void *, ibv_create_comp_cntr, refuse_object);
REFUSED(int, ibv_destroy_comp_cntr, refuse);
REFUSED(int, ibv_inc_comp_cntr, refuse);
REFUSED(int, ibv_inc_err_comp_cntr, refuse);
REFUSED(int, ibv_qp_attach_comp_cntr, refuse);
REFUSED(int, ibv_read_comp_cntr, refuse);
REFUSED(int, ibv_read_err_comp_cntr, refuse);
REFUSED(int, ibv_set_comp_cntr, refuse);
REFUSED(int, ibv_set_err_comp_cntr, refuse);

// What an EFA can do that software devices cannot: programs that build its requests in its memory.
REFUSED(void *, efadv_create_comp_cntr, refuse_object);
REFUSED(int, efadv_get_max_rq_depth, refuse_call);
REFUSED(int, efadv_get_max_sq_depth, refuse_call);
REFUSED(void *, efadv_qp_from_ibv_qp_ex, refuse_object);
REFUSED(int, efadv_query_cq, refuse);
REFUSED(int, efadv_query_qp_wqs, refuse);

REFUSED(int, rdma_query_addrinfo, refuse_call);
REFUSED(int, rdma_resolve_addrinfo, refuse_call);
REFUSED(int, rdma_write_cm_event, refuse_call);
REFUSED(int, repoll_create, refuse_call);
REFUSED(int, repoll_ctl, refuse_call);
REFUSED(int, repoll_wait, refuse_call);

// struct vb_buffer is memory for the device. Ordinary memory does.
struct vb_buffer {
	struct ibv_pd *pd;
	char *addr;
	size_t size;
};

void *vb_alloc_buf(struct ibv_pd *pd, size_t size, struct vb_buffer **to) AS(ibv_alloc_buf);
void *vb_alloc_buf(struct ibv_pd *pd, size_t size, struct vb_buffer **to)
{
	struct vb_buffer *buffer = calloc(1, sizeof *buffer);
	void *addr;
	int error = buffer ? 0 : ENOMEM;

	if (!error && !size)
		error = EINVAL;
	if (!error)
		error = posix_memalign(&addr, sysconf(_SC_PAGESIZE), size);
	if (error) {
		free(buffer);
		return vb_fail(error);
	}
	*buffer = (struct vb_buffer){pd, addr, size};
	*to = buffer;
	return addr;
}

void vb_free_buf(struct vb_buffer *buffer) AS(ibv_free_buf);
void vb_free_buf(struct vb_buffer *buffer)
{
	free(buffer->addr);
	free(buffer);
}

int vb_export_buf_dmabuf_fd(struct vb_buffer *buffer) AS(ibv_export_buf_dmabuf_fd);
int vb_export_buf_dmabuf_fd(struct vb_buffer *buffer)
{
	(void)buffer;
	errno = ENODATA; // as for all memory without a DMA-buf
	return -1;
}

// struct vb_mr_attr is struct ibv_mr_init_attr. The bits say which members count.
struct vb_mr_attr {
	size_t length;
	int access;
	uint64_t mask;
	uint64_t iova;
	void *addr;
	int fd;
	uint64_t fd_offset;
	void *dmah;
	struct vb_buffer *buffer;
};

enum { WITH_IOVA = 1 << 0, WITH_ADDR = 1 << 1, WITH_FD = 1 << 2, WITH_FD_OFFSET = 1 << 3, WITH_BUFFER = 1 << 5 };

// contains reports whether a buffer has the range of a memory region.
static bool contains(const struct vb_buffer *buffer, const char *addr, size_t length)
{
	size_t offset = (uintptr_t)addr - (uintptr_t)buffer->addr;

	return addr >= buffer->addr && offset <= buffer->size && length <= buffer->size - offset;
}

struct ibv_mr *vb_reg_mr_ex(struct ibv_pd *pd, const struct vb_mr_attr *attr) AS(ibv_reg_mr_ex);
struct ibv_mr *vb_reg_mr_ex(struct ibv_pd *pd, const struct vb_mr_attr *attr)
{
	uint64_t mask = attr->mask;

	if (mask & ~(uint64_t)(WITH_IOVA | WITH_ADDR | WITH_FD | WITH_FD_OFFSET | WITH_BUFFER))
		return vb_fail(EOPNOTSUPP);
	// The memory is at an address, or it is that of a file, which needs an offset and an iova.
	if (mask & WITH_FD ? mask & (WITH_ADDR | WITH_BUFFER) || ~mask & (WITH_FD_OFFSET | WITH_IOVA) : !(mask & WITH_ADDR) || mask & WITH_FD_OFFSET)
		return vb_fail(EINVAL);
	if (mask & WITH_BUFFER && (attr->buffer->pd != pd || !contains(attr->buffer, attr->addr, attr->length)))
		return vb_fail(EINVAL);
	if (mask & WITH_FD)
		return ibv_reg_dmabuf_mr(pd, attr->fd_offset, attr->length, attr->iova, attr->fd, attr->access);
	return ibv_reg_mr_iova2(pd, attr->addr, attr->length, mask & WITH_IOVA ? attr->iova : (uintptr_t)attr->addr, attr->access);
}

struct ibv_mr *vb_reg_buf_mr(struct ibv_pd *pd, struct vb_buffer *buffer, void *addr, size_t length, int access) AS(ibv_reg_buf_mr);
struct ibv_mr *vb_reg_buf_mr(struct ibv_pd *pd, struct vb_buffer *buffer, void *addr, size_t length, int access)
{
	struct vb_mr_attr attr = {.mask = WITH_ADDR | WITH_BUFFER, .addr = addr, .length = length, .access = access, .buffer = buffer};

	return vb_reg_mr_ex(pd, &attr);
}

// vb_query_port_speed stores the speed of a port in units of 100 Mbit/s.
int vb_query_port_speed(struct ibv_context *context, uint32_t port, uint64_t *speed) AS(ibv_query_port_speed);
int vb_query_port_speed(struct ibv_context *context, uint32_t port, uint64_t *speed)
{
	// By the codes of the width, and of the speed of a lane.
	static const unsigned int lanes[] = {[1] = 1, [2] = 4, [4] = 8, [8] = 12, [16] = 2};
	static const unsigned int lane[] = {[1] = 25, [2] = 50, [4] = 100, [8] = 100, [16] = 140, [32] = 250, [64] = 500, [128] = 1000};
	struct ibv_port_attr attr;
	int error = port > UINT8_MAX ? EINVAL : ibv_query_port(context, port, &attr);

	if (error)
		return error;
	if (attr.active_width >= sizeof lanes / sizeof *lanes || attr.active_speed >= sizeof lane / sizeof *lane)
		return EOPNOTSUPP;
	*speed = lanes[attr.active_width] * lane[attr.active_speed];
	return 0;
}

const char *vb_wr_opcode_str(unsigned int opcode) AS(ibv_wr_opcode_str);
const char *vb_wr_opcode_str(unsigned int opcode)
{
	static const char *const names[] = {
		[IBV_WR_RDMA_WRITE] = "RDMA write", [IBV_WR_RDMA_WRITE_WITH_IMM] = "RDMA write with immediate",
		[IBV_WR_SEND] = "send", [IBV_WR_SEND_WITH_IMM] = "send with immediate", [IBV_WR_RDMA_READ] = "RDMA read",
		[IBV_WR_ATOMIC_CMP_AND_SWP] = "atomic compare and swap", [IBV_WR_ATOMIC_FETCH_AND_ADD] = "atomic fetch and add",
		[IBV_WR_LOCAL_INV] = "local invalidate", [IBV_WR_BIND_MW] = "bind memory window",
		[IBV_WR_SEND_WITH_INV] = "send with invalidate", [IBV_WR_TSO] = "TSO", [IBV_WR_DRIVER1] = "driver 1",
		[14] = "flush", [IBV_WR_ATOMIC_WRITE] = "atomic write",
	};
	const char *name = opcode < sizeof names / sizeof *names ? names[opcode] : NULL;

	return name ? name : "unknown";
}

// Functions of releases to come are the system's still. They call functions of the context's provider,
// which libibverbs keeps in a struct that only it knows. So it makes that struct itself, for a
// provider that has no function at all: it fills in its own, which refuse with EOPNOTSUPP.

// LONGEST bounds the system's struct verbs_context, which grows with its releases.
#define LONGEST 16384

// find_context returns the context in memory that libibverbs has filled in, or NULL. It has the size of
// struct verbs_context right before it, and is the last member of that.
static struct ibv_context *find_context(char *memory)
{
	for (size_t at = 0; at + sizeof(size_t) + sizeof(struct ibv_context) <= LONGEST; at += sizeof(size_t)) {
		struct ibv_context *context = (struct ibv_context *)(memory + at + sizeof(size_t));

		if (*(size_t *)(memory + at) == at + sizeof(size_t) + sizeof *context && context->abi_compat == __VERBS_ABI_IS_EXTENDED)
			return context;
	}
	return NULL;
}

typedef void *make_context(struct ibv_device *device, int fd, size_t size, struct verbs_context *offset, uint32_t driver);

static struct ibv_context *make_unsupported(void *libibverbs)
{
	// libibverbs counts the users of a device in a struct of its own around this one.
	static union {
		struct ibv_device base;
		char room[4096];
	} device;
	make_context *make = (make_context *)dlsym(libibverbs, "_verbs_init_and_alloc_context");
	char *memory = make ? make(&device.base, -1, LONGEST, NULL, 0) : NULL;

	return memory ? find_context(memory) : NULL;
}

struct verbs_ex_private *vb_empty_provider(void)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static struct ibv_context *unsupported;
	static bool made;

	pthread_mutex_lock(&lock);
	void *libibverbs = made ? NULL : vb_system_library("libibverbs.so.1");
	if (libibverbs) {
		unsupported = make_unsupported(libibverbs);
		made = true;
	}
	pthread_mutex_unlock(&lock);
	return unsupported ? vb_container(unsupported, struct verbs_context, context)->priv : NULL;
}
