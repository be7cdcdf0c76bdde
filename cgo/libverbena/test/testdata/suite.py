# Runs one module of rdma-core's tests, and writes what became of each test to a file: a line of
# JSON for each. Arguments: the folder of the tests, the file, the module, and the arguments of
# run_tests.py.
#
# The tests of rdmacm fork after the device was opened, and a process cannot use the library after
# its parent has used it. For that module, the address comes from the environment variable ADDRESS,
# and the device is opened only by the processes that the tests fork.

import importlib.util
import json
import os
import sys
import types
import unittest

folder, report, module = sys.argv[1:4]
sys.argv[1:] = sys.argv[4:]
sys.path.insert(0, folder)
spec = importlib.util.spec_from_file_location('tests', os.path.join(folder, '__init__.py'), submodule_search_locations=[folder])
tests = sys.modules['tests'] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tests)
from args_parser import parser
parser.parse_args()

if module == 'test_rdmacm':
    import tests.base
    import tests.utils

    def setUp(self):
        self.pkey_index = 0
        self.ip_addr = os.environ['ADDRESS']
        self.dev_info = {'dev_name': self.dev_name, 'ib_port': self.ib_port, 'gid_index': self.gid_index}

    tests.base.RDMACMBaseTest.setUp = setUp
    tests.base.RDMATestCase.is_eth_and_has_roce_hw_bug = lambda self: False
    # Whether the device has multicast is asked of this instead.
    attributes = types.SimpleNamespace(max_mcast_grp=1)
    context = types.SimpleNamespace(query_device=lambda: attributes)
    tests.utils.d = types.SimpleNamespace(Context=lambda name: context)


class Result(unittest.TextTestResult):
    def startTest(self, test):
        super().startTest(test)
        self.outcome = 'failed', ''

    def addSuccess(self, test):
        super().addSuccess(test)
        self.outcome = 'passed', ''

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.outcome = 'skipped', reason

    def stopTest(self, test):
        super().stopTest(test)
        outcome, reason = self.outcome
        with open(report, 'a') as f:
            print(json.dumps({'test': test.id(), 'outcome': outcome, 'reason': reason}), file=f)


found = unittest.defaultTestLoader.loadTestsFromName(module, tests)
# The number of tests comes first, so that it is known if the process ends early.
with open(report, 'a') as f:
    print(json.dumps({'count': found.countTestCases()}), file=f)
result = unittest.TextTestRunner(resultclass=Result, verbosity=2).run(found)
sys.exit(not result.wasSuccessful())
