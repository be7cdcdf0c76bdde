// The files of devices in /sys, by each function of the C library that has a path. With the argument
// "used" the program uses a device before it looks.

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <infiniband/verbs.h>

// CHECK ends the process if a condition does not hold.
#define CHECK(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "%s:%d: not so: %s (errno %d, %s)\n", __FILE__, __LINE__, #condition, errno, strerror(errno)); \
			exit(1); \
		} \
	} while (0)

#define SYS "/sys/class/infiniband"
#define DEVICE SYS "/soft_lo"
#define PORT DEVICE "/ports/1"
#define STATE PORT "/state"

// has checks what a descriptor reads, and closes it.
static void has(int fd, const char *content)
{
	char text[128] = "";

	CHECK(fd >= 0 && read(fd, text, sizeof text - 1) > 0 && !close(fd));
	if (strcmp(text, content))
		fprintf(stderr, "is %s", text);
	CHECK(!strcmp(text, content));
}

static void opening(void)
{
	int (*open_2)(const char *, int), (*openat_2)(int, const char *, int);

	has(open(STATE, O_RDONLY), "4: ACTIVE\n");
	has(open64(STATE, O_RDONLY | O_CLOEXEC), "4: ACTIVE\n");
	has(openat(AT_FDCWD, STATE, O_RDONLY), "4: ACTIVE\n");
	has(openat64(3000, STATE, O_RDONLY), "4: ACTIVE\n"); // the descriptor does not matter
	static const char *const names[] = {"__open_2", "__open64_2"}, *const at_names[] = {"__openat_2", "__openat64_2"};
	for (int i = 0; i < 2; i++) {
		CHECK((open_2 = (int (*)(const char *, int))dlsym(RTLD_DEFAULT, names[i])));
		has(open_2(STATE, O_RDONLY), "4: ACTIVE\n");
		CHECK((openat_2 = (int (*)(int, const char *, int))dlsym(RTLD_DEFAULT, at_names[i])));
		has(openat_2(AT_FDCWD, STATE, O_RDONLY), "4: ACTIVE\n");
	}
	FILE *files[] = {fopen(STATE, "r"), fopen64(STATE, "re")};
	for (int i = 0; i < 2; i++) {
		char line[32];

		CHECK(files[i] && fgets(line, sizeof line, files[i]) && !strcmp(line, "4: ACTIVE\n") && !fclose(files[i]));
	}
	CHECK(open(STATE, O_WRONLY) == -1 && errno == EACCES);
	CHECK(open(DEVICE "/new", O_RDONLY | O_CREAT, 0600) == -1 && errno == EACCES);
	CHECK(!fopen(STATE, "w") && errno == EACCES && !fopen(STATE, "r+") && errno == EACCES);
	CHECK(open(DEVICE "/nothing", O_RDONLY) == -1 && errno == ENOENT);
	CHECK(open(SYS "/soft_l", O_RDONLY) == -1 && errno == ENOENT && open(SYS "x", O_RDONLY) == -1 && errno == ENOENT);
	CHECK(access(PORT "/ports/2", F_OK) == -1 && errno == ENOENT);
}

// descriptors: what is relative to a descriptor, or to the working directory.
static void descriptors(void)
{
	char to[64] = "", where[PATH_MAX];
	int folder = open(SYS, O_RDONLY | O_DIRECTORY), inner, before = open(".", O_RDONLY | O_DIRECTORY);
	struct stat st;
	DIR *list;

	CHECK(folder >= 0 && before >= 0);
	has(openat(folder, "soft_lo/ports/1/link_layer", O_RDONLY), "Ethernet\n");
	CHECK((inner = openat(folder, "soft_lo/ports", O_RDONLY | O_DIRECTORY)) >= 0);
	has(openat(inner, "1/lid", O_RDONLY), "0x0\n");
	CHECK(!fstatat(folder, "soft_lo", &st, AT_SYMLINK_NOFOLLOW) && S_ISLNK(st.st_mode) && !fstatat(folder, "soft_lo", &st, 0) && S_ISDIR(st.st_mode));
	CHECK(!faccessat(folder, "soft_lo/node_type", R_OK, 0));
	CHECK(readlinkat(folder, "soft_lo", to, sizeof to) > 0 && !strcmp(to, "../../devices/virtual/infiniband/soft_lo"));
	CHECK((list = fdopendir(inner)) && !closedir(list) && !close(folder));
	CHECK(!chdir(PORT) && getcwd(where, sizeof where) && !strcmp(where, "/sys/devices/virtual/infiniband/soft_lo/ports/1"));
	has(open("gid_attrs/types/0", O_RDONLY), "RoCE v2\n");
	has(open("../../node_type", O_RDONLY), "1: CA\n");
	CHECK(!fchdir(before) && !close(before));
}

#define IS(type, call) \
	do { \
		memset(&st, 0, sizeof st); \
		CHECK(!(call) && (st.st_mode & S_IFMT) == type); \
	} while (0)

// The version of struct stat, for functions of glibc before 2.33.
#ifdef __x86_64__
static const int old_version = 1;
#else
static const int old_version = 0;
#endif

static void status(void)
{
	struct statx stx;

	{
		struct stat st;

		IS(S_IFDIR, stat(SYS, &st));
		IS(S_IFDIR, stat(SYS "/", &st));
		IS(S_IFDIR, stat(DEVICE, &st));
		IS(S_IFREG, stat(STATE, &st));
		IS(S_IFLNK, lstat(DEVICE, &st));
		IS(S_IFLNK, fstatat(AT_FDCWD, DEVICE, &st, AT_SYMLINK_NOFOLLOW));
		static const char *const names[] = {"__xstat", "__xstat64", "__lxstat", "__lxstat64"}, *const at_names[] = {"__fxstatat", "__fxstatat64"};
		for (int i = 0; i < 4; i++) {
			int (*old)(int, const char *, void *) = (int (*)(int, const char *, void *))dlsym(RTLD_DEFAULT, names[i]);

			CHECK(old);
			IS((i < 2 ? S_IFDIR : S_IFLNK), old(old_version, DEVICE, &st));
		}
		for (int i = 0; i < 2; i++) {
			int (*old)(int, int, const char *, void *, int) = (int (*)(int, int, const char *, void *, int))dlsym(RTLD_DEFAULT, at_names[i]);

			CHECK(old);
			IS(S_IFDIR, old(old_version, AT_FDCWD, DEVICE, &st, 0));
		}
	}
	{
		struct stat64 st;

		IS(S_IFREG, stat64(STATE, &st));
		IS(S_IFLNK, lstat64(DEVICE, &st));
		IS(S_IFDIR, fstatat64(AT_FDCWD, DEVICE, &st, 0));
	}
	CHECK(!statx(AT_FDCWD, DEVICE, AT_SYMLINK_NOFOLLOW, STATX_TYPE, &stx) && S_ISLNK(stx.stx_mode));
	CHECK(!access(STATE, R_OK) && !eaccess(STATE, R_OK) && !euidaccess(STATE, R_OK) && !faccessat(AT_FDCWD, STATE, R_OK, 0));
	struct statfs fs;
	struct statfs64 fs64;
	struct statvfs vfs;
	struct statvfs64 vfs64;

	CHECK(!statfs(STATE, &fs) && !statfs64(STATE, &fs64) && !statvfs(STATE, &vfs) && !statvfs64(STATE, &vfs64));
	char list[256];

	CHECK(listxattr(STATE, list, sizeof list) >= 0 || errno == ENOTSUP);
	CHECK(llistxattr(DEVICE, list, sizeof list) >= 0 || errno == ENOTSUP);
	CHECK(getxattr(STATE, "user.none", list, sizeof list) == -1 && (errno == ENODATA || errno == ENOTSUP));
	CHECK(lgetxattr(STATE, "user.none", list, sizeof list) == -1 && (errno == ENODATA || errno == ENOTSUP));
}

// lists checks that a folder has an entry.
static void lists(const char *path, const char *name)
{
	DIR *folder = opendir(path);
	struct dirent *entry, **entries;
	struct dirent64 **entries64;
	int found = 0;

	CHECK(folder);
	while ((entry = readdir(folder)))
		found += !strcmp(entry->d_name, name);
	CHECK(!closedir(folder));
	for (int i = scandir(path, &entries, NULL, alphasort); i > 0; free(entries[i]))
		found += !strcmp(entries[--i]->d_name, name);
	free(entries);
	for (int i = scandir64(path, &entries64, NULL, alphasort64); i > 0; free(entries64[i]))
		found += !strcmp(entries64[--i]->d_name, name);
	free(entries64);
	CHECK(found == 3);
}

static void folders(void)
{
	lists(SYS, "soft_lo");
	lists(DEVICE, "ports");
	lists(PORT "/gids", "15");
	lists(PORT "/pkeys", "0");
	lists(PORT "/gid_attrs/ndevs", "0");
	lists(PORT "/counters", "port_xmit_packets");
	lists(PORT "/hw_counters", "rcvd_rnr_err");
	lists(DEVICE "/device/net", "lo");
	lists(DEVICE "/device/infiniband_verbs", "uverbs0");
	lists("/sys/class/net/lo/device/infiniband", "soft_lo");
	lists("/sys/class/infiniband_verbs", "uverbs0");
	CHECK(!opendir(STATE) && errno == ENOTDIR && !opendir(SYS "/none") && errno == ENOENT);

	glob_t found;
	glob64_t found64;

	CHECK(!glob(SYS "/*/ports/*/gids/1*", 0, NULL, &found) && found.gl_pathc == 7 && !strcmp(found.gl_pathv[0], PORT "/gids/1"));
	globfree(&found);
	CHECK(!glob64(SYS "/*", GLOB_MARK, NULL, &found64) && found64.gl_pathc == 1 && !strcmp(found64.gl_pathv[0], DEVICE "/"));
	globfree64(&found64);
	CHECK(!glob("/sys/class/net/l?", 0, NULL, &found) && found.gl_pathc == 1 && !strcmp(found.gl_pathv[0], "/sys/class/net/lo"));
	globfree(&found);
}

static void links(void)
{
	static const char target[] = "../../devices/virtual/infiniband/soft_lo";
	ssize_t (*chk)(const char *, char *, size_t, size_t) = (ssize_t (*)(const char *, char *, size_t, size_t))dlsym(RTLD_DEFAULT, "__readlink_chk");
	ssize_t (*at_chk)(int, const char *, char *, size_t, size_t) = (ssize_t (*)(int, const char *, char *, size_t, size_t))dlsym(RTLD_DEFAULT, "__readlinkat_chk");
	char *(*real_chk)(const char *, char *, size_t) = (char *(*)(const char *, char *, size_t))dlsym(RTLD_DEFAULT, "__realpath_chk");
	const ssize_t length = strlen(target);
	char to[PATH_MAX] = "", *path;

	CHECK(readlink(DEVICE, to, sizeof to) == length && !memcmp(to, target, length));
	CHECK(readlinkat(AT_FDCWD, DEVICE, to, sizeof to) == length);
	CHECK(chk && chk(DEVICE, to, sizeof to, sizeof to) == length && at_chk && at_chk(AT_FDCWD, DEVICE, to, sizeof to, sizeof to) == length);
	CHECK(readlink(STATE, to, sizeof to) == -1 && errno == EINVAL);
	CHECK(realpath(DEVICE, to) == to && !strcmp(to, "/sys/devices/virtual/infiniband/soft_lo"));
	CHECK((path = realpath(DEVICE "/device", NULL)) && !strcmp(path, "/sys/devices/virtual/verbena/soft_lo"));
	free(path);
	CHECK((path = canonicalize_file_name("/sys/class/infiniband_verbs/uverbs0")) && !strcmp(path, "/sys/devices/virtual/infiniband_verbs/uverbs0"));
	free(path);
	CHECK(real_chk && real_chk(DEVICE "/device/net/lo", to, sizeof to) && !strcmp(to, "/sys/devices/virtual/net/lo"));
	has(open("/sys/devices/virtual/infiniband/soft_lo/ports/1/pkeys/0", O_RDONLY), "0xffff\n");
	has(open(SYS "/../../devices/virtual/infiniband/soft_lo/device/numa_node", O_RDONLY), "-1\n");
}

// values: the files say what verbs say.
static void values(struct ibv_context *context)
{
	struct ibv_port_attr attr;
	struct ibv_gid_entry entry;
	char path[128], text[128], *end = text;
	FILE *file;

	CHECK(!ibv_query_port(context, 1, &attr));
	for (int i = 0; i < attr.gid_tbl_len; i++) {
		union ibv_gid gid;

		CHECK(!ibv_query_gid(context, 1, i, &gid));
		end = text;
		for (int j = 0; j < 16; j += 2)
			end += sprintf(end, "%02x%02x%c", gid.raw[j], gid.raw[j + 1], j == 14 ? '\n' : ':');
		snprintf(path, sizeof path, PORT "/gids/%d", i);
		has(open(path, O_RDONLY), text);
		snprintf(path, sizeof path, PORT "/gid_attrs/types/%d", i);
		CHECK(!access(path, R_OK) == !ibv_query_gid_ex(context, 1, i, &entry, 0));
	}
	snprintf(text, sizeof text, "0x%08x\n", attr.port_cap_flags);
	has(open(PORT "/cap_mask", O_RDONLY), text);
	snprintf(path, sizeof path, "/sys/class/infiniband_verbs/%s/ibdev", context->device->dev_name);
	has(open(path, O_RDONLY), "soft_lo\n");
	__be64 guid = ibv_get_device_guid(context->device);
	unsigned char *bytes = (unsigned char *)&guid;

	end = text;
	for (int i = 0; i < 8; i += 2)
		end += sprintf(end, "%02x%02x%c", bytes[i], bytes[i + 1], i == 6 ? '\n' : ':');
	CHECK((file = fopen(DEVICE "/node_guid", "r")) && fgets(path, sizeof path, file) && !fclose(file) && !strcmp(path, text));
}

static unsigned long counter(int folder, const char *path)
{
	char text[32] = "";
	int fd = openat(folder, path, O_RDONLY);

	CHECK(fd >= 0 && read(fd, text, sizeof text - 1) > 0 && !close(fd));
	return strtoul(text, NULL, 10);
}

// send sends messages from a queue pair to another.
static void send_messages(struct ibv_context *context, int count)
{
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	struct ibv_qp *qps[2];
	union ibv_gid gid;

	CHECK(pd && cq && !ibv_query_gid(context, 1, 0, &gid));
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC, .send_cq = cq, .recv_cq = cq, .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1}};
		struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};

		CHECK((qps[i] = ibv_create_qp(pd, &init)));
		CHECK(!ibv_modify_qp(qps[i], &attr, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS));
	}
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_attr attr = {
			.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = qps[!i]->qp_num, .max_dest_rd_atomic = 1, .min_rnr_timer = 1,
			.ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .hop_limit = 64}},
		};

		CHECK(!ibv_modify_qp(qps[i], &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
		attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 15, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
		CHECK(!ibv_modify_qp(qps[i], &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
	}
	for (int i = 0; i < count; i++) {
		struct ibv_recv_wr receive = {0}, *bad_receive;
		struct ibv_send_wr send = {.opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}, *bad;
		struct ibv_wc wc;

		CHECK(!ibv_post_recv(qps[1], &receive, &bad_receive) && !ibv_post_send(qps[0], &send, &bad));
		for (int done = 0; done < 2;) {
			int n = ibv_poll_cq(cq, 1, &wc);

			CHECK(n >= 0 && (!n || wc.status == IBV_WC_SUCCESS));
			done += n;
		}
	}
	CHECK(!ibv_destroy_qp(qps[0]) && !ibv_destroy_qp(qps[1]) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd));
}

// counters: they are those of the moment at which the file is opened.
static void counters(struct ibv_context *context)
{
	int folder = open(PORT "/hw_counters", O_RDONLY | O_DIRECTORY), before = open(".", O_RDONLY | O_DIRECTORY);
	unsigned long sent = counter(AT_FDCWD, PORT "/hw_counters/rdma_sends");

	send_messages(context, 5);
	CHECK(counter(AT_FDCWD, PORT "/hw_counters/rdma_sends") == sent + 5);
	send_messages(context, 6);
	CHECK(counter(folder, "rdma_sends") == sent + 11);
	CHECK(!chdir(PORT "/hw_counters"));
	send_messages(context, 7);
	CHECK(counter(AT_FDCWD, "rdma_sends") == sent + 18);
	CHECK(!fchdir(before));
	unsigned long packets = counter(AT_FDCWD, PORT "/counters/port_xmit_packets");

	send_messages(context, 8);
	FILE *file = fopen(PORT "/counters/port_xmit_packets", "r");
	unsigned long now;

	CHECK(file && fscanf(file, "%lu", &now) == 1 && now >= packets + 8 && !fclose(file));
}

// children: a forked child can look as well, and what it does at its exit concerns it alone.
static void children(void)
{
	int state;
	pid_t child = fork();

	CHECK(child >= 0);
	if (!child) {
		folders();
		has(open(PORT "/pkeys/0", O_RDONLY), "0xffff\n");
		CHECK(counter(AT_FDCWD, PORT "/hw_counters/rdma_sends") < 1000);
		exit(7);
	}
	CHECK(waitpid(child, &state, 0) == child && WIFEXITED(state) && WEXITSTATUS(state) == 7);
	folders();
}

int main(int count, char **arguments)
{
	struct ibv_context *context = NULL;

	if (count > 1 && !strcmp(arguments[1], "used")) {
		struct ibv_device **list = ibv_get_device_list(NULL);

		CHECK(list && list[0] && (context = ibv_open_device(list[0])));
		ibv_free_device_list(list);
	}
	opening();
	descriptors();
	status();
	folders();
	links();
	children();
	if (context) {
		values(context);
		counters(context);
	}
	printf("all as it should be\n");
	return 0;
}
