//go:build linux && cgo && verbs

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

#include "verbena_rdmacm.h"

#define VC_MEMBER(name, version, result, parameters) result(*name) parameters;
static struct {
	VC_FUNCTIONS(VC_MEMBER)
} lib;

const char *vc_load(void)
{
	static char message[512];
	void *handle = dlopen("librdmacm.so.1", RTLD_NOW | RTLD_GLOBAL);

	if (!handle) {
		// Copy dlerror's text: it belongs to the thread, and Go may change threads.
		snprintf(message, sizeof message, "%s", dlerror());
		return message;
	}
#define VC_RESOLVE(name, version, result, parameters) \
	*(void **)&lib.name = dlvsym(handle, "rdma_" #name, version); \
	if (!lib.name) { \
		snprintf(message, sizeof message, "librdmacm.so.1 is too old: it has no rdma_%s of version %s", #name, version); \
		return message; \
	}
	VC_FUNCTIONS(VC_RESOLVE)
	return NULL;
}

static int errno_of(int result)
{
	if (result == 0)
		return 0;
	if (result == -1)
		return errno ? errno : EIO;
	return result < 0 ? -result : result;
}

struct rdma_event_channel *vc_create_event_channel(void) { return lib.create_event_channel(); }
void vc_destroy_event_channel(struct rdma_event_channel *channel) { lib.destroy_event_channel(channel); }

static void copy_private(struct vc_param *to, const void *data, uint8_t len)
{
	if (data && len) {
		memcpy(to->private_data, data, len);
		to->private_len = len;
	}
}

int vc_next_event(struct rdma_event_channel *channel, struct vc_event *to)
{
	struct rdma_cm_event *event;
	int result;

	memset(to, 0, sizeof *to);
	result = lib.get_cm_event(channel, &event);
	if (result)
		return errno_of(result);
	to->id = event->id;
	to->listener = event->listen_id;
	to->kind = event->event;
	to->status = event->status;
	switch (event->event) {
	case RDMA_CM_EVENT_CONNECT_REQUEST:
	case RDMA_CM_EVENT_CONNECT_RESPONSE:
	case RDMA_CM_EVENT_UNREACHABLE:
	case RDMA_CM_EVENT_REJECTED:
	case RDMA_CM_EVENT_ESTABLISHED:
		if (event->id->qp_type == IBV_QPT_UD) {
			struct rdma_ud_param *ud = &event->param.ud;

			to->param.qpn = ud->qp_num;
			to->param.qkey = ud->qkey;
			to->address = ud->ah_attr;
			copy_private(&to->param, ud->private_data, ud->private_data_len);
		} else {
			struct rdma_conn_param *conn = &event->param.conn;

			to->param.qpn = conn->qp_num;
			to->param.responder_resources = conn->responder_resources;
			to->param.initiator_depth = conn->initiator_depth;
			to->param.retry_count = conn->retry_count;
			to->param.rnr_retry_count = conn->rnr_retry_count;
			to->param.srq = conn->srq;
			copy_private(&to->param, conn->private_data, conn->private_data_len);
		}
		break;
	case RDMA_CM_EVENT_MULTICAST_JOIN:
		to->param.qpn = event->param.ud.qp_num;
		to->param.qkey = event->param.ud.qkey;
		to->address = event->param.ud.ah_attr;
		break;
	default:
		break;
	}
	lib.ack_cm_event(event);
	return 0;
}

int vc_create_id(struct rdma_event_channel *channel, int datagrams, struct rdma_cm_id **id)
{
	return errno_of(lib.create_id(channel, id, NULL, datagrams ? RDMA_PS_UDP : RDMA_PS_TCP));
}

int vc_destroy_id(struct rdma_cm_id *id) { return errno_of(lib.destroy_id(id)); }

int vc_migrate_id(struct rdma_cm_id *id, struct rdma_event_channel *channel)
{
	return errno_of(lib.migrate_id(id, channel));
}

// sockaddr_of fills in a socket address. It returns NULL for an address without a family.
static struct sockaddr *sockaddr_of(const struct vc_addr *from, struct sockaddr_storage *to)
{
	memset(to, 0, sizeof *to);
	if (from->family == AF_INET) {
		struct sockaddr_in *in = (struct sockaddr_in *)to;

		in->sin_family = AF_INET;
		in->sin_port = htons(from->port);
		memcpy(&in->sin_addr, from->ip, 4);
	} else if (from->family == AF_INET6) {
		struct sockaddr_in6 *in = (struct sockaddr_in6 *)to;

		in->sin6_family = AF_INET6;
		in->sin6_port = htons(from->port);
		in->sin6_scope_id = from->scope;
		memcpy(&in->sin6_addr, from->ip, 16);
	} else {
		return NULL;
	}
	return (struct sockaddr *)to;
}

static void addr_of(const struct sockaddr *from, struct vc_addr *to)
{
	to->family = from->sa_family;
	if (from->sa_family == AF_INET) {
		const struct sockaddr_in *in = (const struct sockaddr_in *)from;

		to->port = ntohs(in->sin_port);
		memcpy(to->ip, &in->sin_addr, 4);
	} else if (from->sa_family == AF_INET6) {
		const struct sockaddr_in6 *in = (const struct sockaddr_in6 *)from;

		to->port = ntohs(in->sin6_port);
		memcpy(to->ip, &in->sin6_addr, 16);
	} else {
		to->family = 0;
	}
}

int vc_bind_addr(struct rdma_cm_id *id, struct vc_addr *addr)
{
	struct sockaddr_storage storage;
	int off = 0;

	// Let the unspecified address include IPv4, independent of net.ipv6.bindv6only.
	if (addr->family == AF_INET6)
		lib.set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &off, sizeof off);
	return errno_of(lib.bind_addr(id, sockaddr_of(addr, &storage)));
}

int vc_resolve_addr(struct rdma_cm_id *id, struct vc_addr *local, struct vc_addr *remote, int ms)
{
	struct sockaddr_storage from, to;

	return errno_of(lib.resolve_addr(id, sockaddr_of(local, &from), sockaddr_of(remote, &to), ms));
}

int vc_resolve_route(struct rdma_cm_id *id, int ms) { return errno_of(lib.resolve_route(id, ms)); }

void vc_route_of(struct rdma_cm_id *id, struct vc_route *route)
{
	memset(route, 0, sizeof *route);
	addr_of(&id->route.addr.src_addr, &route->local);
	addr_of(&id->route.addr.dst_addr, &route->remote);
	memcpy(route->sgid, &id->route.addr.addr.ibaddr.sgid, 16);
	route->port = id->port_num;
	if (id->verbs)
		snprintf(route->device, sizeof route->device, "%s", id->verbs->device->name);
}

int vc_listen(struct rdma_cm_id *id, int backlog) { return errno_of(lib.listen(id, backlog)); }

static struct rdma_conn_param conn_param(struct vc_param *param)
{
	struct rdma_conn_param p = {
		.private_data = param->private_len ? param->private_data : NULL,
		.private_data_len = param->private_len,
		.responder_resources = param->responder_resources,
		.initiator_depth = param->initiator_depth,
		.retry_count = param->retry_count,
		.rnr_retry_count = param->rnr_retry_count,
		.srq = param->srq,
		.qp_num = param->qpn,
	};

	return p;
}

int vc_connect(struct rdma_cm_id *id, struct vc_param *param)
{
	struct rdma_conn_param p = conn_param(param);

	return errno_of(lib.connect(id, &p));
}

int vc_accept(struct rdma_cm_id *id, struct vc_param *param)
{
	struct rdma_conn_param p = conn_param(param);

	return errno_of(lib.accept(id, &p));
}

int vc_reject(struct rdma_cm_id *id, struct vc_param *param)
{
	return errno_of(lib.reject(id, param->private_len ? param->private_data : NULL, param->private_len));
}

int vc_establish(struct rdma_cm_id *id) { return errno_of(lib.establish(id)); }
int vc_notify(struct rdma_cm_id *id) { return errno_of(lib.notify(id, IBV_EVENT_COMM_EST)); }
int vc_disconnect(struct rdma_cm_id *id) { return errno_of(lib.disconnect(id)); }

int vc_join(struct rdma_cm_id *id, struct vc_addr *group, int send_only)
{
	struct sockaddr_storage to;
	struct rdma_cm_join_mc_attr_ex attr = {
		.comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS,
		.join_flags = send_only ? RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER : RDMA_MC_JOIN_FLAG_FULLMEMBER,
		.addr = sockaddr_of(group, &to),
	};

	return errno_of(lib.join_multicast_ex(id, &attr, NULL));
}

int vc_leave(struct rdma_cm_id *id, struct vc_addr *group)
{
	struct sockaddr_storage from;

	return errno_of(lib.leave_multicast(id, sockaddr_of(group, &from)));
}

int vc_init_qp_attr(struct rdma_cm_id *id, int state, struct ibv_qp_attr *attr, int *mask)
{
	memset(attr, 0, sizeof *attr);
	attr->qp_state = state;
	*mask = 0;
	return errno_of(lib.init_qp_attr(id, attr, mask));
}
