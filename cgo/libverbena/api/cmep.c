// Endpoints: identifiers that are made in one call, and addresses for them.

#include <errno.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>

#include "cm.h"

#define RESOLVE_MS 2000

static int make_passive(struct vb_cm_id *id, struct rdma_addrinfo *from, struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	if (rdma_bind_addr(&id->base, from->ai_src_addr))
		return -1;
	if (pd)
		id->base.pd = pd;
	if (!attr)
		return 0;
	id->qp_init = malloc(sizeof *id->qp_init);
	if (!id->qp_init)
		return vb_result(ENOMEM);
	*id->qp_init = *attr;
	id->qp_init->qp_type = from->ai_qp_type;
	return 0;
}

static int make_active(struct vb_cm_id *id, struct rdma_addrinfo *from, struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	int result = rdma_resolve_addr(&id->base, from->ai_src_addr, from->ai_dst_addr, RESOLVE_MS);

	if (!result && from->ai_route_len) {
		result = rdma_set_option(&id->base, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, from->ai_route, from->ai_route_len);
		if (!result)
			result = vb_cm_complete(id, true);
	} else if (!result) {
		result = rdma_resolve_route(&id->base, RESOLVE_MS);
	}
	if (!result && attr) {
		attr->qp_type = from->ai_qp_type;
		result = rdma_create_qp(&id->base, pd, attr);
	}
	if (!result && from->ai_connect_len) {
		id->connect_data = malloc(from->ai_connect_len);
		if (!id->connect_data)
			return vb_result(ENOMEM);
		memcpy(id->connect_data, from->ai_connect, from->ai_connect_len);
		id->connect_size = from->ai_connect_len;
	}
	return result;
}

VB_EXPORT int rdma_create_ep(struct rdma_cm_id **to, struct rdma_addrinfo *from, struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	struct vb_cm_id *id;
	int error = vb_cm_create(NULL, &id, NULL, from->ai_port_space, from->ai_qp_type);

	if (error)
		return vb_result(error);
	if (from->ai_flags & RAI_PASSIVE ? make_passive(id, from, pd, attr) : make_active(id, from, pd, attr)) {
		error = errno;
		rdma_destroy_ep(&id->base);
		return vb_result(error);
	}
	*to = &id->base;
	return 0;
}

VB_EXPORT void rdma_destroy_ep(struct rdma_cm_id *id)
{
	rdma_destroy_qp(id);
	rdma_destroy_srq(id);
	rdma_destroy_id(id);
}

VB_EXPORT int rdma_get_request(struct rdma_cm_id *given, struct rdma_cm_id **to)
{
	struct vb_cm_id *listener = vb_cm_id(given);
	struct rdma_cm_event *event;
	int error = vb_ready();

	if (!error && !listener->synchronous)
		error = EINVAL;
	if (error)
		return vb_result(error);
	if (given->event) {
		rdma_ack_cm_event(given->event);
		given->event = NULL;
	}
	if (rdma_get_cm_event(given->channel, &event))
		return -1;
	if (event->status)
		error = event->status < 0 ? -event->status : ECONNREFUSED;
	else if (event->event != RDMA_CM_EVENT_CONNECT_REQUEST)
		error = EINVAL;
	if (!error && listener->qp_init) {
		struct ibv_qp_init_attr attr = *listener->qp_init;

		if (rdma_create_qp(event->id, given->pd, &attr)) {
			error = errno;
			rdma_destroy_id(event->id);
		}
	}
	if (error) {
		given->event = event;
		return vb_result(error);
	}
	event->id->event = event;
	*to = event->id;
	return 0;
}

// copy_address stores a copy of an address. It returns an error of getaddrinfo.
static int copy_address(struct sockaddr **to, socklen_t *to_size, const struct sockaddr *from, socklen_t size)
{
	*to = malloc(size);
	if (!*to)
		return EAI_MEMORY;
	memcpy(*to, from, size);
	*to_size = size;
	return 0;
}

static bool uses_datagrams(const struct rdma_addrinfo *hints)
{
	return hints->ai_qp_type == IBV_QPT_UD || hints->ai_port_space == RDMA_PS_UDP;
}

// look_up asks the system's resolver. It returns an error of getaddrinfo.
static int look_up(const char *node, const char *service, const struct rdma_addrinfo *hints, struct rdma_addrinfo *to)
{
	bool passive = hints->ai_flags & RAI_PASSIVE;
	struct addrinfo *found, wanted = {.ai_family = hints->ai_family};
	int error;

	if (passive)
		wanted.ai_flags |= AI_PASSIVE;
	if (hints->ai_flags & RAI_NUMERICHOST)
		wanted.ai_flags |= AI_NUMERICHOST;
	if (hints->ai_qp_type || hints->ai_port_space)
		wanted.ai_socktype = uses_datagrams(hints) ? SOCK_DGRAM : SOCK_STREAM;
	error = getaddrinfo(node, service, &wanted, &found);
	if (error)
		return error;
	to->ai_family = found->ai_family;
	to->ai_qp_type = hints->ai_qp_type ? hints->ai_qp_type : found->ai_socktype == SOCK_DGRAM ? IBV_QPT_UD : IBV_QPT_RC;
	to->ai_port_space = hints->ai_port_space ? hints->ai_port_space : to->ai_qp_type == IBV_QPT_UD ? RDMA_PS_UDP : RDMA_PS_TCP;
	if (passive) {
		to->ai_flags = RAI_PASSIVE;
		error = copy_address(&to->ai_src_addr, &to->ai_src_len, found->ai_addr, found->ai_addrlen);
	} else {
		error = copy_address(&to->ai_dst_addr, &to->ai_dst_len, found->ai_addr, found->ai_addrlen);
	}
	freeaddrinfo(found);
	return error;
}

VB_EXPORT int rdma_getaddrinfo(const char *node, const char *service, const struct rdma_addrinfo *hints, struct rdma_addrinfo **result)
{
	static const struct rdma_addrinfo none;
	struct rdma_addrinfo *to;
	int error;

	if (!node && !service && !hints)
		return vb_result(EINVAL);
	if (!hints)
		hints = &none;
	error = vb_load();
	if (error)
		return vb_result(error);
	to = calloc(1, sizeof *to);
	if (!to)
		return vb_result(ENOMEM);
	if (node || service) {
		error = look_up(node, service, hints, to);
	} else {
		to->ai_flags = hints->ai_flags;
		to->ai_family = hints->ai_family;
		to->ai_qp_type = hints->ai_qp_type;
		to->ai_port_space = hints->ai_port_space;
		if (hints->ai_dst_len)
			error = copy_address(&to->ai_dst_addr, &to->ai_dst_len, hints->ai_dst_addr, hints->ai_dst_len);
	}
	if (!error && !to->ai_src_len && hints->ai_src_len)
		error = copy_address(&to->ai_src_addr, &to->ai_src_len, hints->ai_src_addr, hints->ai_src_len);
	if (error) {
		rdma_freeaddrinfo(to);
		return error;
	}
	*result = to;
	return 0;
}

VB_EXPORT void rdma_freeaddrinfo(struct rdma_addrinfo *list)
{
	while (list) {
		struct rdma_addrinfo *next = list->ai_next;

		free(list->ai_src_addr);
		free(list->ai_dst_addr);
		free(list->ai_src_canonname);
		free(list->ai_dst_canonname);
		free(list->ai_route);
		free(list->ai_connect);
		free(list);
		list = next;
	}
}
