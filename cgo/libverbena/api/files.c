// The files of the kernel's drivers that UCX and others read: the character devices in
// /dev/infiniband, which they only look for, and the attributes of ports in
// /sys/class/infiniband. The functions of the C library are replaced for paths that belong to
// our devices, once these have been listed.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <net/if.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "verbena.h"

static const char dev_folder[] = "/dev/infiniband/";
static const char sys_folder[] = "/sys/class/infiniband/";

static bool begins(const char *path, const char *with)
{
	return strncmp(path, with, strlen(with)) == 0;
}

// is_character_device reports whether a path is that of one of our devices in /dev.
static bool is_character_device(const char *path)
{
	return begins(path, dev_folder) && vb_find_device(NULL, path + strlen(dev_folder));
}

// gid_attribute stores what a file of an entry of the GID table holds.
static int gid_attribute(struct ibv_context *context, uint32_t port, uint32_t index, const char *file, char *to, size_t size)
{
	struct ibv_gid_entry entry;
	char name[IF_NAMESIZE] = "";

	if (_ibv_query_gid_ex(context, port, index, &entry, 0, sizeof entry))
		return EINVAL; // as the kernel answers for an empty entry
	if (strcmp(file, "gid_attrs/types") == 0) {
		snprintf(to, size, "%s\n", entry.gid_type == IBV_GID_TYPE_ROCE_V2 ? "RoCE v2" : "IB/RoCE v1");
	} else if (strcmp(file, "gid_attrs/ndevs") == 0) {
		if (!if_indextoname(entry.ndev_ifindex, name))
			return EINVAL;
		snprintf(to, size, "%s\n", name);
	} else if (strcmp(file, "gids") == 0) {
		for (int i = 0; i < 16; i += 2)
			snprintf(to + i / 2 * 5, size - i / 2 * 5, "%02x%02x%c", entry.gid.raw[i], entry.gid.raw[i + 1], i == 14 ? '\n' : ':');
	} else {
		return ENOENT;
	}
	return 0;
}

// attribute stores what a file in /sys holds, of which path is the part after the device's name.
static int attribute(struct ibv_context *context, const char *path, char *to, size_t size)
{
	char file[32];
	unsigned int port, index;
	struct ibv_port_attr attr;

	if (strcmp(path, "node_type") == 0) {
		snprintf(to, size, "1: CA\n");
		return 0;
	}
	if (sscanf(path, "ports/%u/gids/%u", &port, &index) == 2)
		return gid_attribute(context, port, index, "gids", to, size);
	if (sscanf(path, "ports/%u/gid_attrs/%15[a-z]/%u", &port, to, &index) == 3) {
		snprintf(file, sizeof file, "gid_attrs/%s", to);
		return gid_attribute(context, port, index, file, to, size);
	}
	if (sscanf(path, "ports/%u/%31s", &port, file) != 2 || ibv_query_port(context, port, &attr))
		return ENOENT;
	if (strcmp(file, "state") == 0)
		snprintf(to, size, "%d: %s\n", attr.state, attr.state == IBV_PORT_ACTIVE ? "ACTIVE" : "DOWN");
	else if (strcmp(file, "link_layer") == 0)
		snprintf(to, size, "%s\n", attr.link_layer == IBV_LINK_LAYER_ETHERNET ? "Ethernet" : "InfiniBand");
	else
		return ENOENT;
	return 0;
}

// read_attribute stores what the file of that path holds. It returns -1 if the path is not of
// our devices, and otherwise an errno.
static int read_attribute(const char *path, char *to, size_t size)
{
	char name[IBV_SYSFS_NAME_MAX];
	const char *end;
	struct vb_device *device;
	int error;

	if (!begins(path, sys_folder))
		return -1;
	path += strlen(sys_folder);
	end = strchr(path, '/');
	if (!end || end - path >= (ptrdiff_t)sizeof name)
		return -1;
	snprintf(name, sizeof name, "%.*s", (int)(end - path), path);
	device = vb_find_device(name, NULL);
	if (!device)
		return -1;
	error = vb_share(device);
	return error ? error : attribute(device->context, end + 1, to, size);
}

// is_replaced reports whether a path can be of our devices. The C library's function was called before,
// and returned a negative result if it failed. So the kernel has checked the path's address, unless it
// was other arguments that it refused.
static bool is_replaced(const char *path, int result)
{
	return vb_state == VB_READY && !(result < 0 && (errno == EFAULT || errno == EINVAL || errno == ENOMEM)) && path[0] == '/';
}

// open_file returns a descriptor for the file of a path: -2 if it is not of our devices, -1 with
// errno set if it cannot be opened.
static int open_file(const char *path, int flags)
{
	char content[128];
	int error, fd;

	error = read_attribute(path, content, sizeof content);
	if (error < 0)
		return -2;
	if (!error && (flags & O_ACCMODE) != O_RDONLY)
		error = EACCES;
	if (error) {
		errno = error;
		return -1;
	}
	fd = memfd_create("verbena", flags & O_CLOEXEC ? MFD_CLOEXEC : 0);
	if (fd >= 0 && (write(fd, content, strlen(content)) < 0 || lseek(fd, 0, SEEK_SET) < 0)) {
		close(fd);
		fd = -1;
	}
	return fd;
}

// NEXT declares a pointer to the function that the program would call without this library.
#define NEXT(result, name, ...) \
	static _Atomic(result (*)(__VA_ARGS__)) next; \
	if (!next) \
		next = (result (*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

// mode_of returns the third argument of open, which is there if a file is to be made.
static mode_t mode_of(int flags, va_list arguments)
{
	return flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(arguments, mode_t) : 0;
}

// instead returns the descriptor for a file of our devices in place of the one that the C library
// opened. errno stays what it was if the file is none of them.
static int instead(const char *path, int flags, int opened)
{
	int before = errno, fd = is_replaced(path, opened) ? open_file(path, flags) : -2;

	if (fd == -2) {
		errno = before;
		return opened;
	}
	if (opened >= 0)
		close(opened);
	return fd;
}

#define OPEN(name) \
	VB_EXPORT int name(const char *path, int flags, ...) \
	{ \
		NEXT(int, name, const char *, int, ...); \
		va_list arguments; \
		va_start(arguments, flags); \
		mode_t mode = mode_of(flags, arguments); \
		va_end(arguments); \
		return instead(path, flags, next(path, flags, mode)); \
	}

OPEN(open)
OPEN(open64)

#define OPENAT(name) \
	VB_EXPORT int name(int folder, const char *path, int flags, ...) \
	{ \
		NEXT(int, name, int, const char *, int, ...); \
		va_list arguments; \
		va_start(arguments, flags); \
		mode_t mode = mode_of(flags, arguments); \
		va_end(arguments); \
		return instead(path, flags, next(folder, path, flags, mode)); \
	}

OPENAT(openat)
OPENAT(openat64)

#define FOPEN(name) \
	VB_EXPORT FILE *name(const char *path, const char *mode) \
	{ \
		NEXT(FILE *, name, const char *, const char *); \
		FILE *opened = next(path, mode); \
		int before = errno, fd = -2; \
		if (is_replaced(path, opened ? 0 : -1)) \
			fd = open_file(path, mode[0] == 'r' && !strchr(mode, '+') ? O_RDONLY : O_RDWR); \
		if (fd == -2) { \
			errno = before; \
			return opened; \
		} \
		if (opened) \
			fclose(opened); \
		return fd < 0 ? NULL : fdopen(fd, "r"); \
	}

FOPEN(fopen)
FOPEN(fopen64)

VB_EXPORT int access(const char *path, int mode)
{
	NEXT(int, access, const char *, int);
	char content[128];
	int result = next(path, mode), before = errno, error;

	if (!is_replaced(path, result))
		return result;
	if (is_character_device(path)) {
		error = 0;
	} else {
		error = read_attribute(path, content, sizeof content);
		if (!error && mode & (W_OK | X_OK))
			error = EACCES;
	}
	errno = error > 0 ? error : before;
	return error < 0 ? result : error ? -1 : 0;
}

// The major number of uverbs devices.
#define UVERBS_MAJOR 231

#define STAT(name, type) \
	VB_EXPORT int name(const char *path, struct type *to) \
	{ \
		NEXT(int, name, const char *, struct type *); \
		int result = next(path, to); \
		if (!is_replaced(path, result) || !is_character_device(path) || next("/", to)) \
			return result; \
		memset(to, 0, sizeof *to); \
		to->st_mode = S_IFCHR | 0666; \
		to->st_rdev = makedev(UVERBS_MAJOR, 192); \
		to->st_nlink = 1; \
		return 0; \
	}

STAT(stat, stat)
STAT(stat64, stat64)

// No header has the two functions below any more. Programs declare them.

VB_EXPORT const char *ibv_get_sysfs_path(void)
{
	return "/sys";
}

// ibv_read_sysfs_file stores what a file holds, without the newline at its end, and returns its
// length. It returns -1 if the file cannot be read, or is longer.
VB_EXPORT int ibv_read_sysfs_file(const char *folder, const char *file, char *to, size_t size)
{
	char path[PATH_MAX];
	ssize_t length;
	int fd;

	if (snprintf(path, sizeof path, "%s/%s", folder, file) >= (int)sizeof path) {
		errno = ENAMETOOLONG;
		return -1;
	}
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	length = read(fd, to, size);
	close(fd);
	if (length > 0 && to[length - 1] == '\n')
		length--;
	else if (length == (ssize_t)size)
		length = -1;
	if (length >= 0)
		to[length] = 0;
	return length;
}
