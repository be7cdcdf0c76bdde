//go:build linux && cgo && verbs

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "verbena_efa.h"

const char *vb_efa_load(const char *file, struct vb_efa *lib, char *message, size_t size)
{
	// libibverbs has already loaded the library as its provider, under another name. dlopen
	// returns that one, and loads no second copy.
	void *handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);

	if (!handle) {
		snprintf(message, size, "%s", dlerror());
		return message;
	}
#define VB_EFA_RESOLVE(name, version, since, result, parameters) *(void **)&lib->name = dlvsym(handle, "efadv_" #name, version);
	VB_EFA_FUNCTIONS(VB_EFA_RESOLVE)
	return NULL;
}

int vb_efa_since(const struct vb_efa *lib, const char *function, bool *has)
{
#define VB_EFA_SINCE(name, version, since, result, parameters) \
	if (strcmp(function, "efadv_" #name) == 0) { \
		*has = lib->name != NULL; \
		return since; \
	}
	VB_EFA_FUNCTIONS(VB_EFA_SINCE)
	*has = false;
	return 0;
}

static int errno_of(int result)
{
	if (result == -1)
		return errno ? errno : EIO;
	return result < 0 ? -result : result;
}

int vb_efa_query_device(const struct vb_efa *lib, struct ibv_context *ctx, struct vb_efa_device_attr *attr)
{
	memset(attr, 0, sizeof *attr);
	return errno_of(lib->query_device(ctx, attr, sizeof *attr));
}

int vb_efa_query_ah(const struct vb_efa *lib, struct ibv_ah *ah, uint16_t *number)
{
	struct vb_efa_ah_attr attr = {0};
	int result = errno_of(lib->query_ah(ah, &attr, sizeof attr));

	*number = attr.ahn;
	return result;
}

struct ibv_qp *vb_efa_create_qp(const struct vb_efa *lib, struct ibv_context *ctx, struct ibv_qp_init_attr_ex *attr, uint16_t flags)
{
	struct vb_efa_qp_init_attr own = {.driver_qp_type = VB_EFA_QP_SRD, .flags = flags};

	return lib->create_qp_ex(ctx, attr, &own, sizeof own);
}

struct ibv_cq_ex *vb_efa_create_cq(const struct vb_efa *lib, struct ibv_context *ctx, struct ibv_cq_init_attr_ex *attr, uint64_t flags)
{
	struct vb_efa_cq_init_attr own = {.wc_flags = flags};

	return lib->create_cq(ctx, attr, &own, sizeof own);
}

struct vb_efa_cq *vb_efa_cq_of(const struct vb_efa *lib, struct ibv_cq_ex *cq) { return lib->cq_from_ibv_cq_ex(cq); }

int vb_efa_read_sgid(void *cq, union ibv_gid *sgid)
{
	struct vb_efa_cq *own = cq;

	return own->wc_read_sgid(own, sgid);
}

int vb_efa_is_unsolicited(void *cq)
{
	struct vb_efa_cq *own = cq;

	return own->wc_is_unsolicited(own);
}
