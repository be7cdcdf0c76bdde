// Identifiers of librdmacm: addresses, connections, options.

#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cm.h"

struct vb_cm_id *vb_cm_new(void *context, enum rdma_port_space space, enum ibv_qp_type type)
{
	struct vb_cm_id *id = calloc(1, sizeof *id);

	if (!id)
		return NULL;
	id->base.context = context;
	id->base.ps = space;
	id->base.qp_type = type;
	pthread_mutex_init(&id->mutex, NULL);
	pthread_cond_init(&id->cond, NULL);
	return id;
}

_Atomic bool vb_cm_used;

int vb_cm_create(struct rdma_event_channel *channel, struct vb_cm_id **made, void *context, enum rdma_port_space space, enum ibv_qp_type type)
{
	int error = vb_load();
	bool synchronous = !channel;
	struct vb_cm_id *id;

	vb_cm_used = true;
	if (error)
		return error;
	id = vb_cm_new(context, space, type);
	if (!id)
		return ENOMEM;
	if (synchronous && !(channel = rdma_create_event_channel())) {
		free(id);
		return errno;
	}
	id->synchronous = synchronous;
	error = vb.cm_create(id, space, type, &id->handle);
	if (error) {
		if (synchronous)
			rdma_destroy_event_channel(channel);
		free(id);
		return error;
	}
	vb_cm_attach(id, vb_container(channel, struct vb_cm_channel, base));
	*made = id;
	return 0;
}

VB_EXPORT int rdma_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **to, void *context, enum rdma_port_space space)
{
	struct vb_cm_id *id;
	int error = vb_cm_create(channel, &id, context, space, space == RDMA_PS_UDP || space == RDMA_PS_IPOIB ? IBV_QPT_UD : IBV_QPT_RC);

	if (!error)
		*to = &id->base;
	return vb_result(error);
}

// open_named stores the device of that name, which it opens at the first call. It returns an errno.
static int open_named(const char *name, struct vb_device **to)
{
	struct vb_device *device = vb_find_device(name, NULL);
	int error;

	if (!device) { // listing takes long, so that it is not done for each connection
		ibv_free_device_list(ibv_get_device_list(NULL));
		device = vb_find_device(name, NULL);
	}
	error = device ? vb_share(device) : ENODEV;
	if (!error)
		*to = device;
	return error;
}

VB_EXPORT struct ibv_context **rdma_get_devices(int *count)
{
	int all, opened = 0;
	struct ibv_device **list = ibv_get_device_list(&all);
	struct ibv_context **contexts = NULL;

	if (count)
		*count = 0;
	if (!list)
		return NULL;
	contexts = calloc(all + 1, sizeof *contexts);
	for (int i = 0; contexts && i < all; i++) {
		struct vb_device *device = vb_container(list[i], struct vb_device, base);

		if (!vb_share(device))
			contexts[opened++] = device->context;
	}
	ibv_free_device_list(list);
	if (!contexts)
		return vb_fail(ENOMEM);
	if (count)
		*count = opened;
	return contexts;
}

VB_EXPORT void rdma_free_devices(struct ibv_context **list)
{
	free(list);
}

int vb_cm_refresh(struct vb_cm_id *id)
{
	struct rdma_route *route = &id->base.route;
	struct vd_cm_route known;
	int error = vb.cm_query(id->handle, &known);

	if (error)
		return error;
	if (known.source.ss_family != AF_UNSPEC)
		route->addr.src_storage = known.source;
	if (known.destination.ss_family != AF_UNSPEC)
		route->addr.dst_storage = known.destination;
	if (!known.device[0])
		return 0;
	route->addr.addr.ibaddr.sgid = id->path.sgid = known.sgid;
	route->addr.addr.ibaddr.dgid = id->path.dgid = known.dgid;
	route->addr.addr.ibaddr.pkey = id->path.pkey = htons(VB_DEFAULT_PKEY);
	id->path.traffic_class = known.traffic_class;
	id->path.mtu = known.mtu;
	if (id->device)
		return 0;
	error = open_named(known.device, &id->device);
	if (error)
		return error;
	id->base.port_num = known.port;
	id->base.verbs = id->device->context;
	if (!id->base.pd)
		id->base.pd = id->device->pd;
	return 0;
}

// EXACTLY says of a value of a path record that it holds as it is (IBTA 15.2.5.16).
#define EXACTLY 2

void vb_cm_set_route(struct vb_cm_id *id)
{
	struct ibv_sa_path_rec *path = &id->path;

	path->hop_limit = 64;
	path->reversible = path->numb_path = 1;
	path->mtu_selector = path->rate_selector = path->packet_life_time_selector = EXACTLY;
	path->rate = IBV_RATE_10_GBPS;
	path->packet_life_time = 18; // 1 s, as the kernel assumes on RoCE
	path->preference = IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_PRIMARY | IBV_PATH_FLAG_BIDIRECTIONAL;
	id->base.route.path_rec = path;
	id->base.route.num_paths = 1;
}

socklen_t vb_cm_size(const struct sockaddr *address)
{
	if (address && address->sa_family == AF_INET)
		return sizeof(struct sockaddr_in);
	if (address && address->sa_family == AF_INET6)
		return sizeof(struct sockaddr_in6);
	return 0; // AF_IB: there is no InfiniBand here
}

VB_EXPORT int rdma_bind_addr(struct rdma_cm_id *id, struct sockaddr *address)
{
	int error = vb_ready();

	if (!error && !vb_cm_size(address))
		error = EINVAL;
	if (!error)
		error = vb.cm_bind(vb_cm_id(id)->handle, address);
	if (!error)
		error = vb_cm_refresh(vb_cm_id(id));
	return vb_result(error);
}

// The time limit is not needed: nothing is sent for an address.
VB_EXPORT int rdma_resolve_addr(struct rdma_cm_id *id, struct sockaddr *source, struct sockaddr *destination, int timeout_ms)
{
	bool waits = vb_cm_id(id)->synchronous;
	int error = vb_ready();

	(void)timeout_ms;
	if (!error && (!vb_cm_size(destination) || source && !vb_cm_size(source)))
		error = EINVAL;
	if (!error) {
		memcpy(&id->route.addr.dst_storage, destination, vb_cm_size(destination));
		error = vb.cm_resolve_addr(vb_cm_id(id)->handle, source, destination);
	}
	if (error)
		return vb_result(error);
	return waits ? vb_cm_complete(vb_cm_id(id), true) : 0;
}

VB_EXPORT int rdma_resolve_route(struct rdma_cm_id *id, int timeout_ms)
{
	bool waits = vb_cm_id(id)->synchronous;
	int error = vb_ready();

	(void)timeout_ms;
	if (!error)
		error = vb.cm_resolve_route(vb_cm_id(id)->handle);
	if (error)
		return vb_result(error);
	return waits ? vb_cm_complete(vb_cm_id(id), true) : 0;
}

VB_EXPORT int rdma_listen(struct rdma_cm_id *id, int backlog)
{
	int error = vb_ready();

	if (!error)
		error = vb.cm_listen(vb_cm_id(id)->handle, backlog);
	if (!error)
		error = vb_cm_refresh(vb_cm_id(id));
	return vb_result(error);
}

// set_param fills in the parameters of a request or an acceptance. The depths given are those that
// apply if the program leaves the choice. It returns an errno.
static int set_param(struct vb_cm_id *id, struct rdma_conn_param *to, const struct rdma_conn_param *from, uint8_t responder_resources, uint8_t initiator_depth)
{
	struct vb_device *device = id->device;
	struct ibv_qp *qp = id->base.qp;

	if (!device || !from && !qp)
		return EINVAL;
	*to = from ? *from : (struct rdma_conn_param){
		.responder_resources = RDMA_MAX_RESP_RES, .initiator_depth = RDMA_MAX_INIT_DEPTH, .retry_count = 7, .rnr_retry_count = 7,
	};
	if (!to->private_data)
		to->private_data_len = 0;
	if (qp) {
		to->qp_num = qp->qp_num;
		to->srq = qp->srq != NULL;
	}
	if (to->responder_resources == RDMA_MAX_RESP_RES)
		to->responder_resources = responder_resources;
	if (to->initiator_depth == RDMA_MAX_INIT_DEPTH)
		to->initiator_depth = initiator_depth;
	if (id->base.qp_type != IBV_QPT_UD && (to->responder_resources > device->max_responder_resources || to->initiator_depth > device->max_initiator_depth))
		return EINVAL;
	return 0;
}

VB_EXPORT int rdma_connect(struct rdma_cm_id *given, struct rdma_conn_param *param)
{
	struct vb_cm_id *id = vb_cm_id(given);
	struct rdma_conn_param all;
	bool waits = id->synchronous;
	uint8_t data[UINT8_MAX];
	size_t prefix = id->connect_size;
	int error = vb_ready();

	if (!error && !id->device)
		error = EINVAL;
	if (!error)
		error = set_param(id, &all, param, id->device->max_responder_resources, id->device->max_initiator_depth);
	if (!error && prefix + all.private_data_len > sizeof data)
		error = EINVAL;
	if (error)
		return vb_result(error);
	if (prefix)
		memcpy(data, id->connect_data, prefix);
	if (all.private_data_len)
		memcpy(data + prefix, all.private_data, all.private_data_len);
	all.private_data = data;
	all.private_data_len += prefix;
	id->connect_size = 0; // for a second call; rdma_destroy_id frees the data
	error = vb.cm_connect(id->handle, &all);
	if (error) {
		id->connect_size = prefix;
		return vb_result(error);
	}
	return waits ? vb_cm_complete(id, true) : 0;
}

int vb_cm_establish(struct vb_cm_id *id)
{
	return vb.cm_establish(id->handle);
}

VB_EXPORT int rdma_establish(struct rdma_cm_id *id)
{
	int error = vb_ready();

	if (!error && id->qp)
		error = EINVAL;
	if (!error)
		error = vb_cm_establish(vb_cm_id(id));
	return vb_result(error);
}

static uint8_t smaller(uint8_t a, uint8_t b)
{
	return a < b ? a : b;
}

VB_EXPORT int rdma_accept(struct rdma_cm_id *given, struct rdma_conn_param *param)
{
	struct vb_cm_id *id = vb_cm_id(given);
	bool datagrams = given->qp_type == IBV_QPT_UD;
	bool waits = id->synchronous;
	struct rdma_conn_param all;
	int error = vb_ready();

	if (!error && !id->device)
		error = EINVAL;
	if (!error)
		error = set_param(id, &all, param, smaller(id->responder_resources, id->device->max_responder_resources), smaller(id->initiator_depth, id->device->max_initiator_depth));
	for (enum ibv_qp_state state = IBV_QPS_INIT; !error && !datagrams && state <= IBV_QPS_RTS; state++)
		error = vb_cm_modify_qp(id, state, all.responder_resources, all.initiator_depth);
	if (!error) {
		error = vb.cm_accept(id->handle, &all);
		if (error)
			vb_cm_modify_qp(id, IBV_QPS_ERR, 0, 0);
	}
	if (error)
		return vb_result(error);
	if (!waits)
		return 0;
	if (!datagrams)
		return vb_cm_complete(id, true);
	if (given->event) {
		rdma_ack_cm_event(given->event);
		given->event = NULL;
	}
	return 0;
}

VB_EXPORT int rdma_reject(struct rdma_cm_id *id, const void *private_data, uint8_t size)
{
	int error = vb_ready();

	if (!error)
		error = vb.cm_reject(vb_cm_id(id)->handle, private_data, private_data ? size : 0);
	return vb_result(error);
}

VB_EXPORT int rdma_disconnect(struct rdma_cm_id *given)
{
	struct vb_cm_id *id = vb_cm_id(given);
	bool waits = id->synchronous;
	int error = vb_ready();

	if (!error && !given->verbs)
		error = EINVAL;
	if (!error)
		error = vb_cm_modify_qp(id, IBV_QPS_ERR, 0, 0);
	if (!error)
		error = vb.cm_disconnect(id->handle);
	if (error && error != EALREADY)
		return vb_result(error);
	return waits ? vb_cm_complete(id, !error) : 0;
}

VB_EXPORT int rdma_notify(struct rdma_cm_id *id, enum ibv_event_type event)
{
	int error = vb_ready();

	if (!error)
		error = vb.cm_notify(vb_cm_id(id)->handle, event);
	return vb_result(error);
}

VB_EXPORT int rdma_set_option(struct rdma_cm_id *id, int level, int name, void *value, size_t size)
{
	int error = vb_ready();

	if (!error)
		error = vb.cm_set_option(vb_cm_id(id)->handle, level, name, value, size);
	return vb_result(error);
}

static __be16 port_of(const struct sockaddr_storage *address)
{
	switch (address->ss_family) {
	case AF_INET:
		return ((const struct sockaddr_in *)address)->sin_port;
	case AF_INET6:
		return ((const struct sockaddr_in6 *)address)->sin6_port;
	default:
		return 0;
	}
}

VB_EXPORT __be16 rdma_get_src_port(struct rdma_cm_id *id)
{
	return port_of(&id->route.addr.src_storage);
}

VB_EXPORT __be16 rdma_get_dst_port(struct rdma_cm_id *id)
{
	return port_of(&id->route.addr.dst_storage);
}

// Enhanced connection establishment exchanges what adapters of one vendor have. Software devices
// have none of it, and neither ask for it nor offer it.

VB_EXPORT int rdma_set_local_ece(struct rdma_cm_id *id, struct ibv_ece *ece)
{
	return vb_result(!id || id->qp || !ece || !ece->vendor_id || ece->comp_mask ? EINVAL : 0);
}

VB_EXPORT int rdma_get_remote_ece(struct rdma_cm_id *id, struct ibv_ece *ece)
{
	if (!id || id->qp || !ece)
		return vb_result(EINVAL);
	*ece = (struct ibv_ece){0};
	return 0;
}

VB_EXPORT int rdma_reject_ece(struct rdma_cm_id *id, const void *private_data, uint8_t size)
{
	return rdma_reject(id, private_data, size);
}
