// Multicast groups of identifiers.

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cm.h"

static int join(struct rdma_cm_id *given, const struct sockaddr *group, bool send_only, void *context)
{
	struct vb_cm_id *id = vb_cm_id(given);
	bool waits = id->synchronous;
	struct vb_join *join;
	int error = vb_ready();

	if (!error && !vb_cm_size(group))
		error = EINVAL;
	if (error)
		return vb_result(error);
	join = calloc(1, sizeof *join);
	if (!join)
		return vb_result(ENOMEM);
	join->id = id;
	join->context = context;
	join->send_only = send_only;
	memcpy(&join->group, group, vb_cm_size(group));
	// The lock is held until the join is listed: its event may be read at once, and the program may
	// leave the group then.
	pthread_mutex_lock(&id->mutex);
	error = vb.cm_join(id->handle, (struct sockaddr *)&join->group, send_only, join, &join->handle);
	if (!error) {
		join->next = id->joins;
		id->joins = join;
	}
	pthread_mutex_unlock(&id->mutex);
	if (error) {
		free(join);
		return vb_result(error);
	}
	return waits ? vb_cm_complete(id, true) : 0;
}

VB_EXPORT int rdma_join_multicast(struct rdma_cm_id *id, struct sockaddr *group, void *context)
{
	return join(id, group, false, context);
}

VB_EXPORT int rdma_join_multicast_ex(struct rdma_cm_id *id, struct rdma_cm_join_mc_attr_ex *attr, void *context)
{
	const uint32_t needed = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;

	if (attr->comp_mask >= RDMA_CM_JOIN_MC_ATTR_RESERVED)
		return vb_result(ENOTSUP);
	if (attr->comp_mask != needed || attr->join_flags >= RDMA_MC_JOIN_FLAG_RESERVED)
		return vb_result(EINVAL);
	return join(id, attr->addr, attr->join_flags == RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER, context);
}

int vb_cm_joined(struct vb_join *join, const struct rdma_ud_param *param)
{
	join->gid = param->ah_attr.grh.dgid;
	if (join->send_only || !join->id->base.qp)
		return 0;
	return ibv_attach_mcast(join->id->base.qp, &join->gid, 0);
}

static bool same_group(const struct sockaddr_storage *a, const struct sockaddr *b)
{
	if (a->ss_family != b->sa_family)
		return false;
	if (a->ss_family == AF_INET)
		return ((const struct sockaddr_in *)a)->sin_addr.s_addr == ((const struct sockaddr_in *)b)->sin_addr.s_addr;
	return memcmp(&((const struct sockaddr_in6 *)a)->sin6_addr, &((const struct sockaddr_in6 *)b)->sin6_addr, sizeof(struct in6_addr)) == 0;
}

// take removes the membership in a group from the identifier's, and returns it, or NULL.
static struct vb_join *take(struct vb_cm_id *id, const struct sockaddr *group)
{
	struct vb_join **at, *found;

	pthread_mutex_lock(&id->mutex);
	for (at = &id->joins; *at && !same_group(&(*at)->group, group); at = &(*at)->next)
		;
	found = *at;
	if (found)
		*at = found->next;
	pthread_mutex_unlock(&id->mutex);
	return found;
}

VB_EXPORT int rdma_leave_multicast(struct rdma_cm_id *given, struct sockaddr *group)
{
	struct vb_cm_id *id = vb_cm_id(given);
	static const union ibv_gid none;
	struct vb_join *join;
	int error = vb_ready();

	if (!error && !vb_cm_size(group))
		error = EINVAL;
	if (error)
		return vb_result(error);
	join = take(id, group);
	if (!join)
		return vb_result(EADDRNOTAVAIL);
	if (given->qp && !join->send_only && memcmp(&join->gid, &none, sizeof none))
		ibv_detach_mcast(given->qp, &join->gid, 0);
	error = vb.cm_leave(join->handle);
	vb_cm_forget_join(join);
	free(join);
	return vb_result(error);
}
