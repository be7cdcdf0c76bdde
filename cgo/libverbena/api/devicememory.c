// Device memory. It is ordinary memory of the process.

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "verbena.h"

// Programs copy words (mlx5 has this rule too). The largest alignment is that of a page.
enum { WORD = 4, LOG_LINE = 6, LOG_PAGE = 12 };

struct device_memory {
	struct ibv_dm base;
	size_t length;
	char *bytes;
	_Atomic int users; // regions
};

static struct device_memory *memory_of(struct ibv_dm *dm)
{
	return vb_container(dm, struct device_memory, base);
}

static bool contains(const struct device_memory *m, uint64_t offset, size_t length)
{
	return offset <= m->length && length <= m->length - offset;
}

static int check_copy(const struct device_memory *m, uint64_t offset, size_t length)
{
	if (offset % WORD || length % WORD)
		return EINVAL;
	return contains(m, offset, length) ? 0 : EFAULT;
}

static int copy_to(struct ibv_dm *dm, uint64_t offset, const void *from, size_t length)
{
	int error = check_copy(memory_of(dm), offset, length);

	if (!error)
		memcpy(memory_of(dm)->bytes + offset, from, length);
	return error;
}

static int copy_from(void *to, struct ibv_dm *dm, uint64_t offset, size_t length)
{
	int error = check_copy(memory_of(dm), offset, length);

	if (!error)
		memcpy(to, memory_of(dm)->bytes + offset, length);
	return error;
}

struct ibv_dm *vb_alloc_dm(struct ibv_context *context, struct ibv_alloc_dm_attr *attr)
{
	uint32_t log_align = attr->log_align_req > LOG_LINE ? attr->log_align_req : LOG_LINE;
	_Atomic size_t *used = &vb_context(context)->device_memory;
	struct device_memory *m;
	void *bytes;

	if (attr->comp_mask || !attr->length || attr->length > VB_DEVICE_MEMORY || log_align > LOG_PAGE)
		return vb_fail(EINVAL);
	if (atomic_fetch_add(used, attr->length) + attr->length > VB_DEVICE_MEMORY || !(m = calloc(1, sizeof *m))) {
		atomic_fetch_sub(used, attr->length);
		return vb_fail(ENOMEM);
	}
	if (posix_memalign(&bytes, (size_t)1 << log_align, attr->length)) {
		atomic_fetch_sub(used, attr->length);
		free(m);
		return vb_fail(ENOMEM);
	}
	m->base = (struct ibv_dm){.context = context, .memcpy_to_dm = copy_to, .memcpy_from_dm = copy_from};
	m->length = attr->length;
	m->bytes = memset(bytes, 0, attr->length);
	return &m->base;
}

int vb_free_dm(struct ibv_dm *dm)
{
	struct device_memory *m = memory_of(dm);

	if (m->users)
		return EBUSY;
	atomic_fetch_sub(&vb_context(dm->context)->device_memory, m->length);
	free(m->bytes);
	free(m);
	return 0;
}

struct ibv_mr *vb_reg_dm_mr(struct ibv_pd *pd, struct ibv_dm *dm, uint64_t offset, size_t length, unsigned int access)
{
	struct device_memory *m = memory_of(dm);
	struct ibv_mr *mr;

	if (!contains(m, offset, length) || !(access & IBV_ACCESS_ZERO_BASED) || access & IBV_ACCESS_ON_DEMAND || dm->context != pd->context)
		return vb_fail(EINVAL);
	// The device has no empty regions: this one gives peers nothing.
	mr = length ? ibv_reg_mr(pd, m->bytes + offset, length, access) : ibv_reg_mr(pd, m->bytes, 1, IBV_ACCESS_ZERO_BASED);
	if (!mr)
		return NULL;
	m->users++;
	mr->addr = NULL;
	mr->length = length;
	vb_container(mr, struct vb_mr, base)->users = &m->users;
	return mr;
}
