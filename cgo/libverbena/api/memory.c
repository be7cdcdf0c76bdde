// Protection domains, memory regions and windows.

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "verbena.h"

VB_EXPORT struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
	struct vb_pd *pd = calloc(1, sizeof *pd);
	int error = pd ? vb_ready() : ENOMEM;

	if (!error)
		error = vb.alloc_pd(vb_context(context)->handle, &pd->base.handle);
	if (error) {
		free(pd);
		return vb_fail(error);
	}
	pd->base.context = context;
	return &pd->base;
}

VB_EXPORT int ibv_dealloc_pd(struct ibv_pd *given)
{
	struct vb_pd *pd = vb_container(given, struct vb_pd, base);
	int error = vb_ready();

	if (pd->parent) {
		pd->parent->refs--;
	} else {
		if (!error && pd->refs)
			error = EBUSY;
		if (!error)
			error = vb.destroy(VD_PD, given->handle);
		if (error)
			return error;
	}
	free(pd);
	return 0;
}

// Thread domains and parent domains promise that the program locks for itself. The devices lock
// all the same.

struct ibv_td *vb_alloc_td(struct ibv_context *context, struct ibv_td_init_attr *attr)
{
	struct ibv_td *td;

	if (attr->comp_mask)
		return vb_fail(EOPNOTSUPP);
	td = calloc(1, sizeof *td);
	if (!td)
		return vb_fail(ENOMEM);
	td->context = context;
	return td;
}

int vb_dealloc_td(struct ibv_td *td)
{
	free(td);
	return 0;
}

struct ibv_pd *vb_alloc_parent_domain(struct ibv_context *context, struct ibv_parent_domain_init_attr *attr)
{
	const uint32_t known = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
	struct vb_pd *pd, *parent;

	if (!attr->pd)
		return vb_fail(EINVAL);
	if (attr->comp_mask & ~known)
		return vb_fail(EOPNOTSUPP);
	pd = calloc(1, sizeof *pd);
	if (!pd)
		return vb_fail(ENOMEM);
	parent = vb_container(attr->pd, struct vb_pd, base);
	pd->parent = parent->parent ? parent->parent : parent;
	pd->parent->refs++;
	pd->base.context = context;
	pd->base.handle = pd->parent->base.handle;
	return &pd->base;
}

static struct ibv_mr *new_mr(struct ibv_pd *pd, void *addr, size_t length)
{
	struct vb_mr *mr = calloc(1, sizeof *mr);

	if (!mr)
		return NULL;
	mr->base.context = pd->context;
	mr->base.pd = pd;
	mr->base.addr = addr;
	mr->base.length = length;
	return &mr->base;
}

static struct ibv_mr *made_mr(struct ibv_mr *mr, int error, const struct vd_new_object *made)
{
	if (error) {
		free(mr);
		return vb_fail(error);
	}
	mr->handle = made->handle;
	mr->lkey = made->number;
	mr->rkey = made->rkey;
	return mr;
}

VB_EXPORT struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access)
{
	struct ibv_mr *mr = new_mr(pd, addr, length);
	struct vd_new_object made;
	int error = mr ? vb_ready() : ENOMEM;

	if (!error)
		error = vb.reg_mr(pd->handle, addr, length, iova, access, &made);
	return made_mr(mr, error, &made);
}

#undef ibv_reg_mr
VB_EXPORT struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	return ibv_reg_mr_iova2(pd, addr, length, (uintptr_t)addr, access);
}

#undef ibv_reg_mr_iova
VB_EXPORT struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, int access)
{
	return ibv_reg_mr_iova2(pd, addr, length, iova, access);
}

VB_EXPORT struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access)
{
	struct ibv_mr *mr = new_mr(pd, (void *)(uintptr_t)offset, length);
	struct vd_new_object made;
	int error = mr ? vb_ready() : ENOMEM;

	if (!error)
		error = vb.reg_dmabuf_mr(pd->handle, offset, length, iova, fd, access, &made);
	return made_mr(mr, error, &made);
}

VB_EXPORT int ibv_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr, size_t length, int access)
{
	int error = vb_ready();

	if (vb_container(mr, struct vb_mr, base)->users)
		error = EOPNOTSUPP;
	if (!flags || flags & ~IBV_REREG_MR_FLAGS_SUPPORTED || (flags & IBV_REREG_MR_CHANGE_PD && !pd) ||
	    (flags & IBV_REREG_MR_CHANGE_TRANSLATION && (!addr || !length)))
		error = EINVAL;
	if (!error)
		error = vb.rereg_mr(mr->handle, flags, flags & IBV_REREG_MR_CHANGE_PD ? pd->handle : 0, addr, length, access);
	if (error) {
		errno = error;
		return IBV_REREG_MR_ERR_INPUT;
	}
	if (flags & IBV_REREG_MR_CHANGE_PD)
		mr->pd = pd;
	if (flags & IBV_REREG_MR_CHANGE_TRANSLATION) {
		mr->addr = addr;
		mr->length = length;
	}
	return 0;
}

VB_EXPORT int ibv_dereg_mr(struct ibv_mr *mr)
{
	_Atomic int *users = vb_container(mr, struct vb_mr, base)->users;
	int error = vb_ready();

	if (!error)
		error = vb.destroy(VD_MR, mr->handle);
	if (error)
		return error;
	if (users)
		--*users;
	free(mr);
	return 0;
}

int vb_advise_mr(struct ibv_pd *pd, enum ibv_advise_mr_advice advice, uint32_t flags, struct ibv_sge *list, uint32_t count)
{
	int error = vb_ready();

	return error ? error : vb.advise_mr(pd->handle, advice, flags, list, count);
}

struct ibv_mw *vb_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type)
{
	struct ibv_mw *mw = calloc(1, sizeof *mw);
	struct vd_new_object made;
	int error = mw ? vb_ready() : ENOMEM;

	if (!error && type != IBV_MW_TYPE_1 && type != IBV_MW_TYPE_2)
		error = EINVAL;
	if (!error)
		error = vb.alloc_mw(pd->handle, type, &made);
	if (error) {
		free(mw);
		return vb_fail(error);
	}
	mw->context = pd->context;
	mw->pd = pd;
	mw->type = type;
	mw->handle = made.handle;
	mw->rkey = made.rkey;
	return mw;
}

int vb_dealloc_mw(struct ibv_mw *mw)
{
	int error = vb_ready();

	if (!error)
		error = vb.destroy(VD_MW, mw->handle);
	if (!error)
		free(mw);
	return error;
}

// vb_bind_mw binds a window of type 1, whose new key the device chooses.
int vb_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind)
{
	struct ibv_send_wr *bad, wr = {
		.wr_id = bind->wr_id, .opcode = IBV_WR_BIND_MW, .send_flags = bind->send_flags,
		.bind_mw = {.mw = mw, .rkey = mw->rkey, .bind_info = bind->bind_info},
	};
	int error = vb_post_send(qp, &wr, &bad);

	if (!error)
		error = vb.mw_key(mw->handle, &mw->rkey);
	return error;
}
