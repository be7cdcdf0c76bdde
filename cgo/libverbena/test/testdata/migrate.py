# migrate.py destination|source FOLDER HOST PORT PIN migrates a running guest of QEMU by RDMA. The
# destination waits for it. The source compares the memory of both, when the guest has moved. The
# guest is a boot sector that changes its memory without end.

import os
import socket
import subprocess
import sys
import time

role, folder, host, port, pin = sys.argv[1:6]
os.makedirs(folder, exist_ok=True)

# cli; mov ax, 0x1000; mov es, ax; xor di, di
# next: mov eax, cr0; xor eax, 0x10000; mov cr0, eax; inc dword [es:di]; add di, 64; jnz next
# mov ax, es; add ax, 0x1000; and ax, 0x7000; or ax, 0x1000; mov es, ax; jmp next
# The change of CR0.WP empties the TLB: an emulator before QEMU 9.0 does not see writes by entries
# that are older than its last look at the dirty pages, and leaves them out, by TCP too.
code = bytes.fromhex('fa' 'b80010' '8ec0' '31ff' '0f20c0' '663500000100' '0f22c0' '6626ff05' '83c740' '75eb' '8cc0' '050010' '250070' '0d0010' '8ec0' 'ebdc')


def qemu(name, *more):
    disk = os.path.join(folder, name + '.disk')
    with open(disk, 'wb') as f:
        f.write(code.ljust(510, b'\0') + b'\x55\xaa')
    return [
        'qemu-system-x86_64', '-accel', 'tcg', '-m', '64', '-nodefaults', '-display', 'none', '-snapshot',
        '-drive', 'file=%s,format=raw,if=ide' % disk, '-monitor', 'unix:%s,server,nowait' % monitor(name), *more,
    ]


def monitor(name):
    return os.path.join(folder, name + '.monitor')


def command(name, text):
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(120)
        s.connect(monitor(name))
        answer = b''
        for _ in range(2):  # the greeting, and the answer
            while not answer.endswith(b'(qemu) '):
                data = s.recv(65536)
                if not data:
                    return answer.decode()
                answer += data
            if text:
                s.sendall(text.encode() + b'\n')
                answer, text = b'', ''
        return answer.decode()


def until(what, condition):
    for _ in range(1200):
        try:
            if condition():
                return
        except OSError:
            pass
        time.sleep(0.1)
    sys.exit('waited in vain for ' + what)


def memory(name):
    file = os.path.join(folder, name + '.memory')
    command(name, 'pmemsave 0x10000 0x70000 "%s"' % file)
    with open(file, 'rb') as f:
        return f.read()


if role == 'destination':
    argv = qemu('destination', '-S', '-incoming', 'rdma:%s:%s' % (host, port))
    os.execvp(argv[0], argv)

until('the destination', lambda: 'inmigrate' in command('destination', 'info status'))
source = subprocess.Popen(qemu('source'))
try:
    until('the guest to change its memory', lambda: any(memory('source')))
    command('source', 'migrate_set_capability rdma-pin-all ' + pin)
    command('source', 'migrate -d rdma:%s:%s' % (host, port))
    until('the end of the migration', lambda: any(end in command('source', 'info migrate') for end in ('completed', 'failed')))
    outcome = command('source', 'info migrate')
    if 'completed' not in outcome:
        sys.exit('the migration failed: %s; the destination: %s' % (outcome, command('destination', 'info status')))
    until('the guest to stop at the destination', lambda: 'inmigrate' not in command('destination', 'info status'))
    was, now = memory('source'), memory('destination')
    if was != now:
        differ = [i for i in range(len(was)) if was[i] != now[i]]
        sys.exit('the memories differ in %d bytes, from %#x to %#x: %s' % (len(differ), differ[0], differ[-1], outcome))
    print('memories are equal')
finally:
    source.kill()
