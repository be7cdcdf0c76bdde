package etcd

import "os"

func mkdir() (string, error) { return os.MkdirTemp("", "verbena-etcd-") }

func rmdir(dir string) error { return os.RemoveAll(dir) }
