// Programs that are not linked with libibverbs or librdmacm, and load them themselves. Each case is a
// run of this program with its name; without one it lists them.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/socket.h>
#include <netinet/in.h>
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

// CHECK ends the process if a condition does not hold.
#define CHECK(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "%s:%d: not so: %s (errno %d, %s)\n", __FILE__, __LINE__, #condition, errno, strerror(errno)); \
			_exit(1); \
		} \
	} while (0)

// LOOK_UP stores a function that has a name of the headers.
#define LOOK_UP(name, look_up) \
	__typeof__(&name) own_##name = (__typeof__(&name))look_up; \
	CHECK(own_##name)

static void *look_up(void *handle, const char *name)
{
	dlerror();
	void *found = dlsym(handle, name);
	const char *error = dlerror();

	if (error)
		fprintf(stderr, "%s\n", error);
	return found;
}

// use opens the first device with the functions of a handle.
static void use(void *handle)
{
	LOOK_UP(ibv_get_device_list, look_up(handle, "ibv_get_device_list"));
	LOOK_UP(ibv_get_device_name, look_up(handle, "ibv_get_device_name"));
	LOOK_UP(ibv_open_device, look_up(handle, "ibv_open_device"));
	LOOK_UP(ibv_alloc_pd, look_up(handle, "ibv_alloc_pd"));
	LOOK_UP(ibv_dealloc_pd, look_up(handle, "ibv_dealloc_pd"));
	LOOK_UP(ibv_close_device, look_up(handle, "ibv_close_device"));
	LOOK_UP(ibv_free_device_list, look_up(handle, "ibv_free_device_list"));
	int count = 0;
	struct ibv_device **list = own_ibv_get_device_list(&count);

	CHECK(list && count == 1);
	CHECK(!strcmp(own_ibv_get_device_name(list[0]), "soft_lo"));
	struct ibv_context *context = own_ibv_open_device(list[0]);

	CHECK(context);
	struct ibv_pd *pd = own_ibv_alloc_pd(context);

	CHECK(pd && !own_ibv_dealloc_pd(pd) && !own_ibv_close_device(context));
	own_ibv_free_device_list(list);
}

// use_cm resolves an address with the functions of a handle.
static void use_cm(void *handle)
{
	LOOK_UP(rdma_create_event_channel, look_up(handle, "rdma_create_event_channel"));
	LOOK_UP(rdma_create_id, look_up(handle, "rdma_create_id"));
	LOOK_UP(rdma_resolve_addr, look_up(handle, "rdma_resolve_addr"));
	LOOK_UP(rdma_get_cm_event, look_up(handle, "rdma_get_cm_event"));
	LOOK_UP(rdma_ack_cm_event, look_up(handle, "rdma_ack_cm_event"));
	LOOK_UP(rdma_destroy_id, look_up(handle, "rdma_destroy_id"));
	LOOK_UP(rdma_destroy_event_channel, look_up(handle, "rdma_destroy_event_channel"));
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(1), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct rdma_event_channel *channel = own_rdma_create_event_channel();
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;

	CHECK(channel && !own_rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	CHECK(!own_rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 2000));
	CHECK(!own_rdma_get_cm_event(channel, &event) && event->event == RDMA_CM_EVENT_ADDR_RESOLVED);
	own_rdma_ack_cm_event(event);
	CHECK(!own_rdma_destroy_id(id));
	own_rdma_destroy_event_channel(channel);
}

static const int flags[] = {
	RTLD_NOW, RTLD_LAZY, RTLD_NOW | RTLD_LOCAL, RTLD_NOW | RTLD_GLOBAL, RTLD_LAZY | RTLD_DEEPBIND, RTLD_NOW | RTLD_NODELETE,
	RTLD_NOW | RTLD_NOLOAD, // libverbena.so is in the process, so its libraries are
};

// open_each opens a library with each of the flags.
static void open_each(const char *name, void (*use)(void *handle))
{
	for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
		void *handle = dlopen(name, flags[i]);

		if (!handle)
			fprintf(stderr, "%s\n", dlerror());
		CHECK(handle);
		use(handle);
		CHECK(!dlclose(handle));
	}
}

static void open_verbs(void) { open_each("libibverbs.so", use); }
static void open_verbs_version(void) { open_each("libibverbs.so.1", use); }
static void open_cm(void) { open_each("librdmacm.so", use_cm); }
static void open_cm_version(void) { open_each("librdmacm.so.1", use_cm); }

// The system's library by its path, as of programs that look for it.
static void open_verbs_path(void) { open_each(getenv("SYSTEM_VERBS"), use); }
static void open_cm_path(void) { open_each(getenv("SYSTEM_CM"), use_cm); }

// librdmacm is linked with libibverbs, so its handle has those functions.
static void open_verbs_by_cm(void) { open_each("librdmacm.so.1", use); }

// versions looks functions up by their versions, as NCCL does.
static void versions(void)
{
	static const struct {
		const char *library, *name, *version;
	} functions[] = {
		{"libibverbs.so", "ibv_get_device_list", "IBVERBS_1.1"}, {"librdmacm.so", "rdma_create_id", "RDMACM_1.0"},
		{"libibverbs.so.1", "ibv_get_device_list", "IBVERBS_1.1"}, {"libibverbs.so.1", "ibv_create_comp_channel", "IBVERBS_1.0"},
		{"libibverbs.so.1", "ibv_reg_mr_iova2", "IBVERBS_1.8"}, {"libibverbs.so.1", "ibv_query_ece", "IBVERBS_1.10"},
		{"libibverbs.so.1", "ibv_reg_dmabuf_mr", "IBVERBS_1.12"}, {"librdmacm.so.1", "rdma_resolve_addr", "RDMACM_1.0"},
		{"librdmacm.so.1", "rdma_establish", "RDMACM_1.2"},
	};
	void *ours = dlsym(RTLD_DEFAULT, "verbena_version");
	Dl_info of_ours, of_found;

	CHECK(ours && dladdr(ours, &of_ours));
	for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
		void *handle = dlopen(functions[i].library, RTLD_NOW);

		CHECK(handle);
		void *found = dlvsym(handle, functions[i].name, functions[i].version);

		CHECK(found && dladdr(found, &of_found) && of_found.dli_fbase == of_ours.dli_fbase);
		CHECK(!dlvsym(handle, functions[i].name, "IBVERBS_99.0"));
	}
}

static void default_handle(void)
{
	use(RTLD_DEFAULT);
	use_cm(RTLD_DEFAULT);
	void *program = dlopen(NULL, RTLD_NOW);

	CHECK(program);
	use(program);
}

// A program may have a function of that name, which calls the library's.
static bool called;

const char *ibv_get_device_name(struct ibv_device *device)
{
	LOOK_UP(ibv_get_device_name, look_up(RTLD_NEXT, "ibv_get_device_name"));
	called = true;
	return own_ibv_get_device_name(device);
}

static void next_handle(void)
{
	use(RTLD_DEFAULT);
	CHECK(called);
	use_cm(RTLD_NEXT);
}

// A library that the user preloads to trace calls is before this one, and finds it by RTLD_NEXT.
static void traced(void)
{
	int *calls = dlsym(RTLD_DEFAULT, "traced_calls");

	CHECK(calls);
	use(RTLD_DEFAULT);
	CHECK(*calls == 1);
}

// What the C library finds by the program's RUNPATH.
static void runpath(void)
{
	void *plugin = dlopen("libloaderplugin.so", RTLD_NOW);

	if (!plugin)
		fprintf(stderr, "%s\n", dlerror());
	CHECK(plugin);
	void (*run)(void) = (void (*)(void))look_up(plugin, "plugin_run");

	CHECK(run);
	run();
	CHECK(!dlopen("libnosuchlibrary.so", RTLD_NOW) && strstr(dlerror(), "libnosuchlibrary.so"));
}

// A plugin that is linked with libibverbs, and prefers what it is linked with.
static void deep_plugin(void)
{
	void *plugin = dlopen("libloaderplugin.so", RTLD_NOW | RTLD_DEEPBIND);

	CHECK(plugin);
	void (*run)(void) = (void (*)(void))look_up(plugin, "plugin_run");

	CHECK(run);
	run();
	use(plugin);
}

// of_version returns a function of a release after that of the headers.
static void *of_version(const char *name, const char *version)
{
	void *found = dlvsym(RTLD_DEFAULT, name, version);

	if (!found)
		fprintf(stderr, "%s\n", dlerror());
	CHECK(found);
	return found;
}

// The attributes of ibv_reg_mr_ex, as in newer headers.
struct mr_attr {
	size_t length;
	int access;
	uint64_t mask, iova;
	void *addr;
	int fd;
	uint64_t fd_offset;
	void *dmah, *buffer;
};

enum { WITH_IOVA = 1 << 0, WITH_ADDR = 1 << 1, WITH_FD = 1 << 2, WITH_FD_OFFSET = 1 << 3, WITH_DMAH = 1 << 4, WITH_BUFFER = 1 << 5 };

static void newer_functions(void)
{
	LOOK_UP(ibv_get_device_list, look_up(RTLD_DEFAULT, "ibv_get_device_list"));
	LOOK_UP(ibv_open_device, look_up(RTLD_DEFAULT, "ibv_open_device"));
	LOOK_UP(ibv_alloc_pd, look_up(RTLD_DEFAULT, "ibv_alloc_pd"));
	LOOK_UP(ibv_dereg_mr, look_up(RTLD_DEFAULT, "ibv_dereg_mr"));
	struct ibv_device **list = own_ibv_get_device_list(NULL);
	struct ibv_context *context = list && list[0] ? own_ibv_open_device(list[0]) : NULL;
	struct ibv_pd *pd = context ? own_ibv_alloc_pd(context) : NULL, *other = context ? own_ibv_alloc_pd(context) : NULL;

	CHECK(pd && other);

	// What software devices do not have.
	static const struct {
		const char *name, *version;
		enum { OBJECT, NUMBER, CALL } kind;
	} refused[] = {
		{"ibv_alloc_dmah", "IBVERBS_1.15", OBJECT}, {"ibv_dealloc_dmah", "IBVERBS_1.15", NUMBER},
		{"ibv_dm_export_dmabuf_fd", "IBVERBS_1.16", CALL}, {"_ibv_query_comp_cntr_caps", "IBVERBS_1.18", NUMBER},
		{"ibv_create_comp_cntr", "IBVERBS_1.18", OBJECT}, {"ibv_destroy_comp_cntr", "IBVERBS_1.18", NUMBER},
		{"ibv_inc_comp_cntr", "IBVERBS_1.18", NUMBER}, {"ibv_inc_err_comp_cntr", "IBVERBS_1.18", NUMBER},
		{"ibv_qp_attach_comp_cntr", "IBVERBS_1.18", NUMBER}, {"ibv_read_comp_cntr", "IBVERBS_1.18", NUMBER},
		{"ibv_read_err_comp_cntr", "IBVERBS_1.18", NUMBER}, {"ibv_set_comp_cntr", "IBVERBS_1.18", NUMBER},
		{"ibv_set_err_comp_cntr", "IBVERBS_1.18", NUMBER}, {"rdma_query_addrinfo", "RDMACM_1.4", CALL},
		{"rdma_resolve_addrinfo", "RDMACM_1.4", CALL}, {"rdma_write_cm_event", "RDMACM_1.4", CALL},
		{"repoll_create", "RDMACM_1.5", CALL}, {"repoll_ctl", "RDMACM_1.5", CALL}, {"repoll_wait", "RDMACM_1.5", CALL},
	};
	for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
		void *function = of_version(refused[i].name, refused[i].version);

		errno = 0;
		if (refused[i].kind == OBJECT)
			CHECK(!((void *(*)(void *, void *, void *))function)(context, context, context));
		else
			CHECK(((int (*)(void *, void *, void *))function)(context, context, context) == (refused[i].kind == CALL ? -1 : EOPNOTSUPP));
		CHECK(errno == EOPNOTSUPP);
	}

	int (*query_speed)(struct ibv_context *, uint32_t, uint64_t *) = of_version("ibv_query_port_speed", "IBVERBS_1.16");
	uint64_t speed = 0;

	CHECK(!query_speed(context, 1, &speed) && speed == 100); // four lanes of 2.5 Gbit/s
	CHECK(query_speed(context, 7, &speed) == EINVAL && query_speed(context, 257, &speed) == EINVAL);
	const char *(*opcode)(int) = (const char *(*)(int))look_up(RTLD_DEFAULT, "ibv_wr_opcode_str");

	CHECK(opcode && !strcmp(opcode(IBV_WR_SEND), "send") && !strcmp(opcode(99), "unknown") && !strcmp(opcode(-1), "unknown"));

	// Buffers, and regions of them and of other memory.
	void *(*alloc_buf)(struct ibv_pd *, size_t, void **) = of_version("ibv_alloc_buf", "IBVERBS_1.17");
	void (*free_buf)(void *) = of_version("ibv_free_buf", "IBVERBS_1.17");
	int (*export_buf)(void *) = of_version("ibv_export_buf_dmabuf_fd", "IBVERBS_1.18");
	struct ibv_mr *(*reg_buf)(struct ibv_pd *, void *, void *, size_t, int) = of_version("ibv_reg_buf_mr", "IBVERBS_1.17");
	struct ibv_mr *(*reg_ex)(struct ibv_pd *, struct mr_attr *) = of_version("ibv_reg_mr_ex", "IBVERBS_1.15");
	void *buffer;
	char *memory = alloc_buf(pd, 10000, &buffer);

	CHECK(memory && (uintptr_t)memory % 4096 == 0);
	memset(memory, 1, 10000);
	CHECK(export_buf(buffer) == -1 && errno == ENODATA);
	struct ibv_mr *mr = reg_buf(pd, buffer, memory + 1000, 9000, IBV_ACCESS_LOCAL_WRITE);

	CHECK(mr && mr->addr == memory + 1000 && mr->length == 9000 && mr->pd == pd && !own_ibv_dereg_mr(mr));
	CHECK(!reg_buf(pd, buffer, memory + 1000, 9001, 0) && errno == EINVAL);
	CHECK(!reg_buf(pd, buffer, memory - 1, 1, 0) && errno == EINVAL);
	CHECK(!reg_buf(pd, buffer, memory, SIZE_MAX, 0) && errno == EINVAL);
	CHECK(!reg_buf(other, buffer, memory, 1, 0) && errno == EINVAL);
	struct mr_attr attr = {.mask = WITH_ADDR, .addr = memory, .length = 100, .access = IBV_ACCESS_LOCAL_WRITE};

	CHECK((mr = reg_ex(pd, &attr)) && mr->addr == memory && mr->length == 100 && !own_ibv_dereg_mr(mr));
	attr.mask |= WITH_IOVA;
	attr.iova = 0x1000;
	CHECK((mr = reg_ex(pd, &attr)) && !own_ibv_dereg_mr(mr));
	static const uint64_t invalid[] = {0, WITH_IOVA, WITH_ADDR | WITH_FD_OFFSET, WITH_FD, WITH_FD | WITH_FD_OFFSET, WITH_ADDR | WITH_FD | WITH_FD_OFFSET | WITH_IOVA, WITH_BUFFER};
	for (size_t i = 0; i < sizeof invalid / sizeof *invalid; i++) {
		attr.mask = invalid[i];
		CHECK(!reg_ex(pd, &attr) && errno == EINVAL);
	}
	attr.mask = WITH_ADDR | WITH_DMAH;
	CHECK(!reg_ex(pd, &attr) && errno == EOPNOTSUPP);
	attr.mask = WITH_ADDR | (uint64_t)1 << 40;
	CHECK(!reg_ex(pd, &attr) && errno == EOPNOTSUPP);
	free_buf(buffer);

	// Structs of newer headers are longer. What this library does not know of is zero.
	char longer[sizeof(struct ibv_port_attr) + 8], *end = longer + sizeof longer;
	struct verbs_context *verbs = verbs_get_ctx(context);

	memset(longer, 0xff, sizeof longer);
	CHECK(verbs && !verbs->query_port(context, 1, (struct ibv_port_attr *)longer, sizeof longer) && !end[-1] && !end[-8]);
	char longer_device[sizeof(struct ibv_device_attr_ex) + 8];
	end = longer_device + sizeof longer_device;
	memset(longer_device, 0xff, sizeof longer_device);
	CHECK(!verbs->query_device_ex(context, NULL, (struct ibv_device_attr_ex *)longer_device, sizeof longer_device) && !end[-1] && !end[-8]);
}

// If there is a newer libibverbs in the process, its functions that this library does not have refuse
// our contexts. Its providers get the functions for that from it, as libibverbs does it.
static void unknown_function(void)
{
	LOOK_UP(ibv_get_device_list, look_up(RTLD_DEFAULT, "ibv_get_device_list"));
	LOOK_UP(ibv_open_device, look_up(RTLD_DEFAULT, "ibv_open_device"));
	int (*number)(struct ibv_context *) = (int (*)(struct ibv_context *))look_up(RTLD_DEFAULT, "ibv_new_number");
	void *(*object)(struct ibv_context *) = (void *(*)(struct ibv_context *))look_up(RTLD_DEFAULT, "ibv_new_object");
	struct ibv_device **list = own_ibv_get_device_list(NULL);

	CHECK(number && object && list && list[0]);
	struct ibv_context *context = own_ibv_open_device(list[0]);

	CHECK(context);
	CHECK(number(context) == EOPNOTSUPP);
	errno = 0;
	CHECK(!object(context) && errno == EOPNOTSUPP);
	use(RTLD_DEFAULT);
}

static const struct {
	const char *name;
	void (*run)(void);
} all[] = {
#define CASE(name) {#name, name}
	CASE(open_verbs), CASE(open_verbs_version), CASE(open_verbs_path), CASE(open_cm), CASE(open_cm_version), CASE(open_cm_path),
	CASE(open_verbs_by_cm), CASE(versions), CASE(default_handle), CASE(next_handle), CASE(traced), CASE(runpath), CASE(deep_plugin),
	CASE(newer_functions), CASE(unknown_function),
};

int main(int argc, char **argv)
{
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		if (argc < 2) {
			puts(all[i].name);
		} else if (strcmp(argv[1], all[i].name) == 0) {
			all[i].run();
			return 0;
		}
	}
	return argc < 2 ? 0 : 2;
}
