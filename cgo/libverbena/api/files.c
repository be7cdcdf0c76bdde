// What the kernel shows of devices in files: the character devices in /dev/infiniband, which UCX and
// others only look for, and the folders of devices in /sys. Real files in a private folder, "the tree",
// stand for the latter: functions of the C library that take a path are replaced, and call the C
// library's with the path in the tree. What is relative to a descriptor needs no replacement then.
//
// The process has a tree of its own once it has loaded the Go half. Before, it looks at the tree of
// verbena run, since to load the Go half into every shell would be slow, and take what these do not
// expect: threads, and handlers of signals. Without verbena run there is no other way.

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "verbena.h"

static bool begins(const char *path, const char *with)
{
	return strncmp(path, with, strlen(with)) == 0;
}

// is_below reports whether a path is that of a folder, or of what is in it.
static bool is_below(const char *path, const char *folder)
{
	size_t length = strlen(folder);

	return strncmp(path, folder, length) == 0 && (path[length] == '/' || path[length] == 0);
}

static const char sys[] = "/sys";

// is_shown reports whether a path is that of a folder of devices in /sys, or of what is in it.
static bool is_shown(const char *path)
{
	static const char *const folders[] = {
		"/sys/class/infiniband", "/sys/class/infiniband_verbs", "/sys/devices/virtual/infiniband",
		"/sys/devices/virtual/infiniband_verbs", "/sys/devices/virtual/verbena",
	};
	static const char interfaces[] = "/sys/class/net/";

	if (!is_below(path, sys))
		return false;
	for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
		if (is_below(path, folders[i]))
			return true;
	path = begins(path, interfaces) ? strchr(path + strlen(interfaces), '/') : NULL;
	return path && is_below(path, "/device/infiniband");
}

// Paths of the process's own tree and of that of verbena run, or NULL.
static _Atomic(const char *) own_tree;
static const char *given_tree;

__attribute__((constructor)) static void take_given_tree(void)
{
	const char *path = getenv("VERBENA_FILES");

	if (path && path[0] == '/')
		given_tree = strdup(path); // the program may change its environment
}

static void make_own_tree(void)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static char path[PATH_MAX];

	pthread_mutex_lock(&lock);
	if (!own_tree && !vb_ready() && !vb.files(path, sizeof path))
		own_tree = path;
	pthread_mutex_unlock(&lock);
}

// tree returns NULL if there is none.
static const char *tree(void)
{
	if (!own_tree && (vb_state == VB_READY || !given_tree && vb_state == VB_UNLOADED && !vb_load()))
		make_own_tree();
	return own_tree ? own_tree : given_tree;
}

// is_replaced reports whether the path of a call is in the tree. The C library's function was called
// before, and set errno if it failed. So the kernel has checked the path's address, unless it was other
// arguments that it refused.
static __attribute__((noinline)) bool is_replaced(const char *path, bool failed)
{
	int error = errno;
	bool is = path && !(failed && (error == EFAULT || error == EINVAL || error == ENOMEM)) && is_shown(path) && tree();

	errno = error;
	return is;
}

// MOVE replaces a path, for which is_replaced is true, by that in the tree.
#define MOVE(path) \
	const char *in = tree(); \
	char moved[strlen(in) + strlen(path) + 1]; \
	stpcpy(stpcpy(moved, in), path + strlen(sys)); \
	path = moved

// shown_path replaces a path in the tree, in place, by that in /sys.
static char *shown_path(char *path)
{
	const char *trees[] = {own_tree, given_tree};

	for (int i = 0; path && i < 2; i++)
		if (trees[i] && is_below(path, trees[i])) {
			const char *end = path + strlen(trees[i]);

			memmove(path + strlen(sys), end, strlen(end) + 1);
			memcpy(path, sys, strlen(sys));
			break;
		}
	return path;
}

// refresh is called when a file is opened. If it is a counter of our devices, its value is updated.
static void refresh(int fd)
{
	static _Atomic dev_t own_device;
	const char *own = own_tree;
	char link[32], path[PATH_MAX];
	struct stat st;
	ssize_t length;
	int error = errno;

	if (!own || vb_state != VB_READY)
		return;
	if (!own_device && !stat(own, &st))
		own_device = st.st_dev;
	if (!fstat(fd, &st) && st.st_dev == own_device) {
		snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
		length = readlink(link, path, sizeof path - 1);
		path[length < 0 ? 0 : length] = 0;
		if (is_below(path, own) && strstr(path + strlen(own), "counters/") && !vb_ready())
			vb.refresh(path);
	}
	errno = error;
}

// NEXT declares a pointer to the function that the program would call without this library.
#define NEXT(name, failure) \
	static _Atomic(__typeof__(&name)) function; \
	__typeof__(&name) next = function; \
	if (!next && !(function = next = (__typeof__(next))dlsym(RTLD_NEXT, #name))) { \
		errno = ENOSYS; \
		return failure; \
	} \
	int before = errno

// REPLACED defines a function with a parameter "path". undo is for what it returned for the program's path.
#define REPLACED(type, failure, undo, name, parameters, ...) \
	VB_EXPORT type name parameters \
	{ \
		NEXT(name, failure); \
		type result = next(__VA_ARGS__); \
		if (!is_replaced(path, result == failure)) \
			return result; \
		if (result != failure) \
			undo; \
		MOVE(path); \
		errno = before; \
		return next(__VA_ARGS__); \
	}

#define INTEGER(name, parameters, ...) REPLACED(int, -1, (void)0, name, parameters, __VA_ARGS__)
#define SIZE(name, parameters, ...) REPLACED(ssize_t, -1, (void)0, name, parameters, __VA_ARGS__)

INTEGER(lstat, (const char *path, struct stat *to), path, to)
INTEGER(lstat64, (const char *path, struct stat64 *to), path, to)
INTEGER(fstatat, (int folder, const char *path, struct stat *to, int flags), folder, path, to, flags)
INTEGER(fstatat64, (int folder, const char *path, struct stat64 *to, int flags), folder, path, to, flags)
INTEGER(statx, (int folder, const char *path, int flags, unsigned int mask, struct statx *to), folder, path, flags, mask, to)
INTEGER(statfs, (const char *path, struct statfs *to), path, to)
INTEGER(statfs64, (const char *path, struct statfs64 *to), path, to)
INTEGER(statvfs, (const char *path, struct statvfs *to), path, to)
INTEGER(statvfs64, (const char *path, struct statvfs64 *to), path, to)
INTEGER(eaccess, (const char *path, int mode), path, mode)
INTEGER(euidaccess, (const char *path, int mode), path, mode)
INTEGER(faccessat, (int folder, const char *path, int mode, int flags), folder, path, mode, flags)
INTEGER(chdir, (const char *path), path)
SIZE(readlink, (const char *path, char *to, size_t size), path, to, size)
SIZE(readlinkat, (int folder, const char *path, char *to, size_t size), folder, path, to, size)
SIZE(getxattr, (const char *path, const char *name, void *to, size_t size), path, name, to, size)
SIZE(lgetxattr, (const char *path, const char *name, void *to, size_t size), path, name, to, size)
SIZE(listxattr, (const char *path, char *to, size_t size), path, to, size)
SIZE(llistxattr, (const char *path, char *to, size_t size), path, to, size)
REPLACED(DIR *, NULL, closedir(result), opendir, (const char *path), path)

// Functions that no header has: those of programs that were built before glibc 2.33, and with _FORTIFY_SOURCE.
#define OLD_STAT(name, type) \
	int name(int version, const char *path, struct type *to); \
	INTEGER(name, (int version, const char *path, struct type *to), version, path, to)
#define OLD_STAT_AT(name, type) \
	int name(int version, int folder, const char *path, struct type *to, int flags); \
	INTEGER(name, (int version, int folder, const char *path, struct type *to, int flags), version, folder, path, to, flags)

OLD_STAT(__xstat, stat)
OLD_STAT(__xstat64, stat64)
OLD_STAT(__lxstat, stat)
OLD_STAT(__lxstat64, stat64)
OLD_STAT_AT(__fxstatat, stat)
OLD_STAT_AT(__fxstatat64, stat64)

ssize_t __readlink_chk(const char *path, char *to, size_t size, size_t room);
SIZE(__readlink_chk, (const char *path, char *to, size_t size, size_t room), path, to, size, room)
ssize_t __readlinkat_chk(int folder, const char *path, char *to, size_t size, size_t room);
SIZE(__readlinkat_chk, (int folder, const char *path, char *to, size_t size, size_t room), folder, path, to, size, room)

// is_character_device reports whether a path is that of one of our devices in /dev.
static bool is_character_device(const char *path)
{
	static const char folder[] = "/dev/infiniband/";

	return begins(path, folder) && vb_find_device(NULL, path + strlen(folder));
}

// is_device is is_replaced for the paths of character devices.
static __attribute__((noinline)) bool is_device(const char *path, bool failed)
{
	int error = errno;
	bool is = vb_state == VB_READY && path && !(failed && (error == EFAULT || error == EINVAL || error == ENOMEM)) && is_character_device(path);

	errno = error;
	return is;
}

VB_EXPORT int access(const char *path, int mode)
{
	NEXT(access, -1);
	int result = next(path, mode);

	if (is_device(path, result < 0)) {
		errno = before;
		return 0;
	}
	if (!is_replaced(path, result < 0))
		return result;
	MOVE(path);
	errno = before;
	return next(path, mode);
}

// The major number of uverbs devices.
#define UVERBS_MAJOR 231

#define STAT(name, type) \
	VB_EXPORT int name(const char *path, struct type *to) \
	{ \
		NEXT(name, -1); \
		int result = next(path, to); \
		if (is_device(path, result < 0) && !next("/", to)) { \
			memset(to, 0, sizeof *to); \
			to->st_mode = S_IFCHR | 0666; \
			to->st_rdev = makedev(UVERBS_MAJOR, 192); \
			to->st_nlink = 1; \
			errno = before; \
			return 0; \
		} \
		if (!is_replaced(path, result < 0)) \
			return result; \
		MOVE(path); \
		errno = before; \
		return next(path, to); \
	}

STAT(stat, stat)
STAT(stat64, stat64)

// OPENED ends a function that opens a file. call is the C library's function, which takes the path.
#define OPENED(call) \
	int result = call; \
	if (is_replaced(path, result < 0)) { \
		if (result >= 0) \
			close(result); \
		if (flags & O_CREAT || (flags & O_ACCMODE) != O_RDONLY) { \
			errno = EACCES; \
			return -1; \
		} \
		MOVE(path); \
		errno = before; \
		result = call; \
	} \
	if (result >= 0) \
		refresh(result); \
	return result

// MODE declares the last argument of open, which is there if a file is to be made.
#define MODE() \
	va_list arguments; \
	va_start(arguments, flags); \
	mode_t mode = flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(arguments, mode_t) : 0; \
	va_end(arguments)

#define OPEN(name) \
	VB_EXPORT int name(const char *path, int flags, ...) \
	{ \
		NEXT(name, -1); \
		MODE(); \
		OPENED(next(path, flags, mode)); \
	}
#define OPENAT(name) \
	VB_EXPORT int name(int folder, const char *path, int flags, ...) \
	{ \
		NEXT(name, -1); \
		MODE(); \
		OPENED(next(folder, path, flags, mode)); \
	}
#define OPEN_2(name) \
	int name(const char *path, int flags); \
	VB_EXPORT int name(const char *path, int flags) \
	{ \
		NEXT(name, -1); \
		OPENED(next(path, flags)); \
	}
#define OPENAT_2(name) \
	int name(int folder, const char *path, int flags); \
	VB_EXPORT int name(int folder, const char *path, int flags) \
	{ \
		NEXT(name, -1); \
		OPENED(next(folder, path, flags)); \
	}

OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
OPEN_2(__open_2)
OPEN_2(__open64_2)
OPENAT_2(__openat_2)
OPENAT_2(__openat64_2)

#define FOPEN(name) \
	VB_EXPORT FILE *name(const char *path, const char *mode) \
	{ \
		NEXT(name, NULL); \
		FILE *result = next(path, mode); \
		if (is_replaced(path, !result)) { \
			if (result) \
				fclose(result); \
			if (mode[0] != 'r' || strchr(mode, '+')) \
				return vb_fail(EACCES); \
			MOVE(path); \
			errno = before; \
			result = next(path, mode); \
		} \
		if (result) \
			refresh(fileno(result)); \
		return result; \
	}

FOPEN(fopen)
FOPEN(fopen64)

// The functions below look at the path themselves, so a wrong address ends the process with or without
// this library.

#define SCANDIR(name, type) \
	VB_EXPORT int name(const char *path, struct type ***list, int (*filter)(const struct type *), int (*compare)(const struct type **, const struct type **)) \
	{ \
		NEXT(name, -1); \
		int result = next(path, list, filter, compare); \
		if (!is_replaced(path, result < 0)) \
			return result; \
		for (int i = 0; i < result; i++) \
			free((*list)[i]); \
		if (result >= 0) \
			free(*list); \
		MOVE(path); \
		errno = before; \
		return next(path, list, filter, compare); \
	}

SCANDIR(scandir, dirent)
SCANDIR(scandir64, dirent64)

static void close_folder(void *folder)
{
	closedir(folder);
}

// The C library calls its own functions for a pattern, unless it is given others.
#define GLOB(name, type, entry, status) \
	VB_EXPORT int name(const char *path, int flags, int (*failed)(const char *, int), type *list) \
	{ \
		NEXT(name, GLOB_ABORTED); \
		if (!(flags & GLOB_ALTDIRFUNC) && begins(path, sys)) { \
			flags |= GLOB_ALTDIRFUNC; \
			list->gl_opendir = (void *(*)(const char *))opendir; \
			list->gl_readdir = (struct entry *(*)(void *))readdir##status; \
			list->gl_closedir = close_folder; \
			list->gl_stat = stat##status; \
			list->gl_lstat = lstat##status; \
		} \
		errno = before; \
		return next(path, flags, failed, list); \
	}

GLOB(glob, glob_t, dirent, )
GLOB(glob64, glob64_t, dirent64, 64)

#define RESOLVED(name, parameters, own, ...) \
	VB_EXPORT char *name parameters \
	{ \
		NEXT(name, NULL); \
		char *result = next(__VA_ARGS__); \
		if (is_replaced(path, !result)) { \
			if (result && (own)) \
				free(result); \
			MOVE(path); \
			errno = before; \
			result = next(__VA_ARGS__); \
		} \
		return shown_path(result); \
	}

RESOLVED(realpath, (const char *path, char *to), !to, path, to)
RESOLVED(canonicalize_file_name, (const char *path), true, path)
char *__realpath_chk(const char *path, char *to, size_t room);
RESOLVED(__realpath_chk, (const char *path, char *to, size_t room), !to, path, to, room)

VB_EXPORT char *getcwd(char *to, size_t size)
{
	NEXT(getcwd, NULL);
	(void)before;
	return shown_path(next(to, size));
}

char *__getcwd_chk(char *to, size_t size, size_t room);
VB_EXPORT char *__getcwd_chk(char *to, size_t size, size_t room)
{
	NEXT(__getcwd_chk, NULL);
	(void)before;
	return shown_path(next(to, size, room));
}

static int open_folder(int in, const char *name)
{
	return syscall(SYS_openat, in, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

// empty removes what is in a folder, without following links, and closes the descriptor. As a signal
// handler may call _exit, it uses system calls only.
static void empty(int folder)
{
	char entries[1024] __attribute__((aligned(8)));
	ssize_t length;
	bool removed;

	do {
		removed = false;
		lseek(folder, 0, SEEK_SET);
		while ((length = syscall(SYS_getdents64, folder, entries, sizeof entries)) > 0)
			for (ssize_t at = 0; at < length; at += ((struct dirent64 *)(entries + at))->d_reclen) {
				const char *name = ((struct dirent64 *)(entries + at))->d_name;

				if (!strcmp(name, ".") || !strcmp(name, ".."))
					continue;
				if (unlinkat(folder, name, 0)) {
					int inner = errno == EISDIR ? open_folder(folder, name) : -1;

					if (inner < 0)
						continue;
					empty(inner);
					if (unlinkat(folder, name, AT_REMOVEDIR))
						continue;
				}
				removed = true;
			}
	} while (removed); // what is removed can make the kernel skip entries
	close(folder);
}

// remove_tree removes a tree if this process has made it, or verbena run, whose process this was. Its
// name begins with the PID (package sysfs). In other folders nothing is touched.
static void remove_tree(const char *path)
{
	static const char *const parts[] = {"class", "devices"}, prefix[] = "verbena-files-";
	const char *name = path ? strrchr(path, '/') : NULL;
	struct stat st;

	if (!name || !begins(name + 1, prefix) || strtol(name + 1 + strlen(prefix), NULL, 10) != getpid())
		return;
	int root = open_folder(AT_FDCWD, path);

	if (root < 0)
		return;
	if (!fstat(root, &st) && st.st_uid == geteuid() && (st.st_mode & 07777) == 0700) {
		for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
			int part = open_folder(root, parts[i]);

			if (part >= 0)
				empty(part);
			unlinkat(root, parts[i], part < 0 ? 0 : AT_REMOVEDIR);
		}
		rmdir(path);
	}
	close(root);
}

__attribute__((destructor)) static void remove_trees(void)
{
	remove_tree(own_tree);
	remove_tree(given_tree);
}

// Some programs, such as the shell dash, end without calling exit.
#define EXIT(name) \
	VB_EXPORT __attribute__((noreturn)) void name(int status) \
	{ \
		remove_trees(); \
		syscall(SYS_exit_group, status); \
		__builtin_unreachable(); \
	}

EXIT(_exit)
EXIT(_Exit)

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
