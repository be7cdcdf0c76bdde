// Devices, contexts, ports and asynchronous events.

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <arpa/inet.h>
#include <endian.h>

#include "verbena.h"

// devices are all devices that were ever listed. They are never freed: programs keep pointers to
// them.
static struct vb_device *devices;
static int device_count;
static pthread_mutex_t devices_lock = PTHREAD_MUTEX_INITIALIZER;

// find_device returns the device of that name, a new one if need be. The lock is held.
static struct vb_device *find_device(const struct vd_device_info *info)
{
	struct vb_device **at = &devices, *device;

	for (; *at; at = &(*at)->next)
		if (strcmp((*at)->base.name, info->name) == 0)
			return *at;
	device = calloc(1, sizeof *device);
	if (!device)
		return NULL;
	device->base.node_type = info->is_efa ? IBV_NODE_UNSPECIFIED : IBV_NODE_CA;
	device->base.transport_type = info->is_efa ? IBV_TRANSPORT_UNSPECIFIED : IBV_TRANSPORT_IB;
	device->guid = info->guid;
	memcpy(device->base.name, info->name, sizeof device->base.name);
	snprintf(device->base.dev_name, sizeof device->base.dev_name, "uverbs%d", device_count++);
	snprintf(device->base.dev_path, sizeof device->base.dev_path, "/sys/class/infiniband_verbs/%s", device->base.dev_name);
	snprintf(device->base.ibdev_path, sizeof device->base.ibdev_path, "/sys/class/infiniband/%s", device->base.name);
	*at = device;
	return device;
}

VB_EXPORT struct ibv_device **ibv_get_device_list(int *count)
{
	struct vd_device_info *infos = NULL;
	struct ibv_device **list = NULL;
	int found = 0, room;
	int error = vb_load();

	if (count)
		*count = 0;
	do {
		room = found;
		free(infos);
		infos = calloc(room + 1, sizeof *infos);
		if (!error && !infos)
			error = ENOMEM;
		if (!error)
			error = vb.devices(infos, room, &found);
	} while (!error && found > room);
	if (!error && !(list = calloc(found + 1, sizeof *list)))
		error = ENOMEM;
	pthread_mutex_lock(&devices_lock);
	for (int i = 0; !error && i < found; i++) {
		struct vb_device *device = find_device(&infos[i]);

		if (!device)
			error = ENOMEM;
		else
			list[i] = &device->base;
	}
	pthread_mutex_unlock(&devices_lock);
	free(infos);
	if (error) {
		free(list);
		return vb_fail(error);
	}
	if (count)
		*count = found;
	return list;
}

struct vb_device *vb_find_device(const char *name, const char *dev_name)
{
	struct vb_device *device;

	pthread_mutex_lock(&devices_lock);
	for (device = devices; device; device = device->next)
		if (name ? strcmp(device->base.name, name) == 0 : strcmp(device->base.dev_name, dev_name) == 0)
			break;
	pthread_mutex_unlock(&devices_lock);
	return device;
}

// share is vb_share for a device that is not open. The lock is held.
static int share(struct vb_device *device)
{
	struct ibv_context *context = ibv_open_device(&device->base);
	struct ibv_device_attr attr;
	int error;

	if (!context)
		return errno;
	error = ibv_query_device(context, &attr);
	if (!error && !(device->pd = ibv_alloc_pd(context)))
		error = errno;
	if (error) {
		ibv_close_device(context);
		return error;
	}
	device->max_responder_resources = attr.max_qp_rd_atom < RDMA_MAX_RESP_RES ? attr.max_qp_rd_atom : RDMA_MAX_RESP_RES - 1;
	device->max_initiator_depth = attr.max_qp_init_rd_atom < RDMA_MAX_INIT_DEPTH ? attr.max_qp_init_rd_atom : RDMA_MAX_INIT_DEPTH - 1;
	device->context = context;
	return 0;
}

int vb_share(struct vb_device *device)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	int error;

	pthread_mutex_lock(&lock);
	error = device->context ? 0 : share(device);
	pthread_mutex_unlock(&lock);
	return error;
}

VB_EXPORT void ibv_free_device_list(struct ibv_device **list)
{
	free(list);
}

VB_EXPORT const char *ibv_get_device_name(struct ibv_device *device)
{
	return device->name;
}

// As on kernels that do not number devices.
VB_EXPORT int ibv_get_device_index(struct ibv_device *device)
{
	(void)device;
	return -1;
}

VB_EXPORT __be64 ibv_get_device_guid(struct ibv_device *device)
{
	return htobe64(vb_container(device, struct vb_device, base)->guid);
}

// copy_prefix stores a struct in the program's, which is shorter or longer with other headers than ours.
static void copy_prefix(void *to, size_t size, const void *from, size_t length)
{
	memset(to, 0, size);
	memcpy(to, from, size < length ? size : length);
}

static int query_device_ex(struct ibv_context *context, const struct ibv_query_device_ex_input *input, struct ibv_device_attr_ex *attr, size_t size)
{
	const struct ibv_device_attr_ex *all = &vb_context(context)->attr;

	if (input && input->comp_mask || size < sizeof attr->orig_attr)
		return EINVAL;
	copy_prefix(attr, size, all, sizeof *all);
	return 0;
}

VB_EXPORT int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
	struct ibv_device_attr_ex all;
	int error = query_device_ex(context, NULL, &all, sizeof all);

	if (!error)
		*attr = all.orig_attr;
	return error;
}

static int query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr, size_t size)
{
	struct ibv_port_attr all = {0};
	int error = vb_ready();

	if (!error)
		error = vb.query_port(vb_context(context)->handle, port, &all);
	if (!error)
		copy_prefix(attr, size, &all, sizeof all);
	return error;
}

// Programs that were built with the headers of before 2018 call this, with a struct that lacks
// the last member.
#undef ibv_query_port
VB_EXPORT int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *attr)
{
	return query_port(context, port, (struct ibv_port_attr *)attr, offsetof(struct ibv_port_attr, port_cap_flags2));
}

int vb_gid_table(struct ibv_context *context, uint32_t port, struct ibv_gid_entry **entries, size_t *count)
{
	size_t room = 0;
	int error = vb_ready();

	*entries = NULL;
	*count = 4;
	while (!error && *count > room) {
		room = *count;
		free(*entries);
		*entries = calloc(room, sizeof **entries);
		error = *entries ? vb.query_gids(vb_context(context)->handle, port, *entries, room, count) : ENOMEM;
	}
	if (error) {
		free(*entries);
		*entries = NULL;
	}
	return error;
}

VB_EXPORT int _ibv_query_gid_ex(struct ibv_context *context, uint32_t port, uint32_t index, struct ibv_gid_entry *entry, uint32_t flags, size_t size)
{
	struct ibv_gid_entry *entries;
	struct ibv_port_attr attr;
	size_t count;
	int error = flags || size < sizeof *entry ? EINVAL : vb_gid_table(context, port, &entries, &count);

	if (error)
		return error;
	error = query_port(context, port, &attr, sizeof attr);
	if (!error)
		error = index < (uint32_t)attr.gid_tbl_len ? ENODATA : EINVAL; // an entry that is empty, or none
	for (size_t i = 0; i < count; i++)
		if (entries[i].gid_index == index) {
			copy_prefix(entry, size, &entries[i], sizeof *entries);
			error = 0;
		}
	free(entries);
	return error;
}

// ibv_devinfo and pyverbs use this function, which no header has. Its version changes with each
// libibverbs, so here it has none. The result is one of the two types that the kernel's sysfs
// distinguishes.
VB_EXPORT int ibv_query_gid_type(struct ibv_context *context, uint8_t port, unsigned int index, unsigned int *type)
{
	struct ibv_gid_entry entry;
	int error = _ibv_query_gid_ex(context, port, index, &entry, 0, sizeof entry);

	if (error) {
		errno = error;
		return -1;
	}
	*type = entry.gid_type == IBV_GID_TYPE_ROCE_V2;
	return 0;
}

VB_EXPORT ssize_t _ibv_query_gid_table(struct ibv_context *context, struct ibv_gid_entry *to, size_t max, uint32_t flags, size_t size)
{
	struct ibv_device_attr_ex attr;
	size_t stored = 0;

	if (flags || size < sizeof *to)
		return -EINVAL;
	int error = query_device_ex(context, NULL, &attr, sizeof attr);
	for (uint32_t port = 1; !error && port <= attr.phys_port_cnt_ex; port++) {
		struct ibv_gid_entry *entries;
		size_t count;

		error = vb_gid_table(context, port, &entries, &count);
		for (size_t i = 0; !error && i < count; i++) {
			if (stored == max) {
				error = EINVAL;
				break;
			}
			copy_prefix((char *)to + stored++ * size, size, &entries[i], sizeof *entries);
		}
		free(entries);
	}
	return error ? -error : (ssize_t)stored;
}

VB_EXPORT int ibv_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid)
{
	struct ibv_gid_entry entry;
	struct ibv_port_attr attr;
	int error = index < 0 ? EINVAL : _ibv_query_gid_ex(context, port, index, &entry, 0, sizeof entry);

	// An entry of the table that is empty is all zeros.
	if (error == ENODATA && !query_port(context, port, &attr, sizeof attr) && index < attr.gid_tbl_len) {
		memset(gid, 0, sizeof *gid);
		return 0;
	}
	if (error) {
		errno = error;
		return -1;
	}
	*gid = entry.gid;
	return 0;
}

VB_EXPORT int ibv_query_pkey(struct ibv_context *context, uint8_t port, int index, __be16 *pkey)
{
	struct ibv_port_attr attr;
	int error = query_port(context, port, &attr, sizeof attr);

	if (!error && index != 0)
		error = EINVAL;
	if (error) {
		errno = error;
		return -1;
	}
	*pkey = htons(VB_DEFAULT_PKEY);
	return 0;
}

VB_EXPORT int ibv_get_pkey_index(struct ibv_context *context, uint8_t port, __be16 pkey)
{
	__be16 own;

	if (ibv_query_pkey(context, port, 0, &own))
		return -1;
	if (own == pkey)
		return 0;
	errno = ENOENT;
	return -1;
}

VB_EXPORT struct ibv_context *ibv_open_device(struct ibv_device *device)
{
	struct vb_context *context;
	struct verbs_context *verbs;
	int error = vb_load();

	if (error)
		return vb_fail(error);
	context = calloc(1, sizeof *context);
	if (!context)
		return vb_fail(ENOMEM);
	error = vb_events_init(&context->async);
	if (error) {
		free(context);
		return vb_fail(error);
	}
	verbs = &context->verbs;
	verbs->sz = sizeof *verbs;
	verbs->query_port = query_port;
	verbs->query_device_ex = query_device_ex;
	verbs->create_cq_ex = vb_create_cq_ex;
	verbs->create_qp_ex = vb_create_qp_ex;
	verbs->create_srq_ex = vb_create_srq_ex;
	verbs->open_xrcd = vb_open_xrcd;
	verbs->close_xrcd = vb_close_xrcd;
	verbs->open_qp = vb_open_qp;
	verbs->get_srq_num = vb_get_srq_num;
	verbs->advise_mr = vb_advise_mr;
	verbs->alloc_dm = vb_alloc_dm;
	verbs->free_dm = vb_free_dm;
	verbs->reg_dm_mr = vb_reg_dm_mr;
	verbs->alloc_td = vb_alloc_td;
	verbs->dealloc_td = vb_dealloc_td;
	verbs->alloc_parent_domain = vb_alloc_parent_domain;
	verbs->priv = vb_empty_provider();
	verbs->context.device = device;
	verbs->context.ops = (struct ibv_context_ops){
		.alloc_mw = vb_alloc_mw, .bind_mw = vb_bind_mw, .dealloc_mw = vb_dealloc_mw,
		.poll_cq = vb_poll_cq, .req_notify_cq = vb_req_notify_cq,
		.post_send = vb_post_send, .post_recv = vb_post_recv, .post_srq_recv = vb_post_srq_recv,
	};
	verbs->context.cmd_fd = context->async.fd; // programs duplicate it for ibv_import_device
	verbs->context.async_fd = context->async.fd;
	verbs->context.num_comp_vectors = 1;
	pthread_mutex_init(&verbs->context.mutex, NULL);
	verbs->context.abi_compat = __VERBS_ABI_IS_EXTENDED;
	error = vb.open(device->name, context, &context->handle);
	if (!error) {
		error = vb.query_device(context->handle, &context->attr);
		context->attr.max_dm_size = VB_DEVICE_MEMORY;
		if (error)
			vb.close(context->handle);
	}
	if (error) {
		vb_events_close(&context->async);
		free(context);
		return vb_fail(error);
	}
	return &verbs->context;
}

VB_EXPORT int ibv_close_device(struct ibv_context *given)
{
	struct vb_context *context = vb_context(given);

	// In a forked child the devices are the parent's.
	if (vb_state == VB_READY && !vb_ready()) // without the message in a forked child
		vb.close(context->handle);
	vb_events_close(&context->async);
	free(context);
	return 0;
}

struct async_event {
	struct vb_event node;
	struct ibv_async_event event;
};

void vb_async(void *context, int type, void *element, int port)
{
	struct async_event *event = calloc(1, sizeof *event);

	if (!event)
		return;
	event->node.object = element;
	event->event.event_type = type;
	if (element)
		event->event.element.qp = element;
	else
		event->event.element.port_num = port;
	vb_events_add(&((struct vb_context *)context)->async, &event->node);
}

enum element { NONE, CQ, QP, SRQ };

static enum element element_of(enum ibv_event_type type)
{
	switch (type) {
	case IBV_EVENT_CQ_ERR:
		return CQ;
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_COMM_EST:
	case IBV_EVENT_SQ_DRAINED:
	case IBV_EVENT_PATH_MIG:
	case IBV_EVENT_PATH_MIG_ERR:
	case IBV_EVENT_QP_LAST_WQE_REACHED:
		return QP;
	case IBV_EVENT_SRQ_ERR:
	case IBV_EVENT_SRQ_LIMIT_REACHED:
		return SRQ;
	default:
		return NONE;
	}
}

static unsigned int *async_counter(struct vb_event *node)
{
	struct ibv_async_event *event = &((struct async_event *)node)->event;

	switch (element_of(event->event_type)) {
	case CQ:
		return &vb_container(event->element.cq, struct vb_cq, base)->asyncs;
	case QP:
		return &vb_container(event->element.qp, struct vb_qp, base)->asyncs;
	case SRQ:
		return &vb_container(event->element.srq, struct vb_srq, base)->asyncs;
	default:
		return NULL;
	}
}

VB_EXPORT int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
	struct vb_event *taken = vb_events_take(&vb_context(context)->async, async_counter);

	if (!taken)
		return -1;
	*event = ((struct async_event *)taken)->event;
	free(taken);
	return 0;
}

static void acknowledge(pthread_mutex_t *mutex, pthread_cond_t *cond, uint32_t *completed)
{
	pthread_mutex_lock(mutex);
	++*completed;
	pthread_cond_broadcast(cond);
	pthread_mutex_unlock(mutex);
}

VB_EXPORT void ibv_ack_async_event(struct ibv_async_event *event)
{
	struct ibv_cq *cq = event->element.cq;
	struct ibv_qp *qp = event->element.qp;
	struct ibv_srq *srq = event->element.srq;

	switch (element_of(event->event_type)) {
	case CQ:
		acknowledge(&cq->mutex, &cq->cond, &cq->async_events_completed);
		break;
	case QP:
		acknowledge(&qp->mutex, &qp->cond, &qp->events_completed);
		break;
	case SRQ:
		acknowledge(&srq->mutex, &srq->cond, &srq->events_completed);
		break;
	default:
		break;
	}
}
