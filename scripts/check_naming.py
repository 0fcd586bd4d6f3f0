#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Names by .clang-tidy: every badly named identifier of the sources, one line each.

    scripts/check_naming.py [--tree DIR] [--build DIR] [--jobs N] [FOLDER...]

    --tree DIR    the sources; default: the folder above this script's
    --build DIR   a build folder, for its compile_commands.json; default: TREE/build
    FOLDER        only files below these folders of the tree

Reading headers is most of what clang-tidy does, so it is given several files as one. They must not
share a name, as they may in unnamed namespaces: a first guess keeps those apart that seem to, and a
group that does not compile is cut in two until it does. A file that does not compile alone is a fault,
as is a header of the tree that nothing includes.
"""
import argparse
import collections
import concurrent.futures
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

FOLDERS = ('kernels', 'topology', 'plugin', 'tools', 'bench', 'tests')
MOST = 16  # files of a group: more are cut in two more often, fewer read headers more often
MOST_LINES = 4000

# What a file calls something at namespace scope, as far as the layout of the sources tells.
NAMES = (
    re.compile(r'^(?:struct|class|union|enum(?: class)?) (\w+)', re.M),
    re.compile(r'^(?:[\w:<>,*&\[\]]+ +)+[*&]*(\w+)(?: = |\{|\[|\(|;)', re.M),
    re.compile(r'^using (\w+) = ', re.M),
    re.compile(r'^TEST\w*\((\w+, *\w+)\)', re.M),
    re.compile(r'^INSTANTIATE_TEST_SUITE_P\((\w+, *\w+)', re.M),
    re.compile(r'^# *define (\w+)', re.M),
)
USING = re.compile(r'^using ([\w:]+::(\w+));', re.M)


class Source:
    """A file to check, and how the build compiles it."""

    def __init__(self, path, command, folder):
        self.path = path
        self.options, self.paths, self.defines = [], [], {}
        words = iter(shlex.split(command)[1:])
        for word in words:
            if word in ('-o', '-c', '-MF', '-MQ', '-MT', '-include-pch'):
                next(words)
            elif word == '-isystem':
                self.paths += ['-isystem', os.path.join(folder, next(words))]
            elif word.startswith('-I'):
                self.paths.append('-I' + os.path.normpath(os.path.join(folder, word[2:])))
            elif word.startswith('-D'):
                name, _, value = word[2:].partition('=')
                self.defines[name] = value
            elif re.match(r'-(std|m|pthread)', word):
                self.options.append(word)
        with open(path, encoding='utf-8') as file:
            text = file.read()
        self.lines = text.count('\n')
        self.names = {name: '' for pattern in NAMES for name in pattern.findall(text)}
        self.names.update({name: what for what, name in USING.findall(text)})

    def clashes(self, other):
        return any(self.names.get(name, what) != what or (what == '' and name in self.names)
                   for name, what in other.names.items())

    def goes_with(self, group):
        if len(group) >= MOST or sum(s.lines for s in group) + self.lines > MOST_LINES:
            return False
        return all(self.options == s.options and not self.clashes(s) and
                   all(s.defines.get(k, v) == v for k, v in self.defines.items()) for s in group)


def sources_of(tree, build, folders):
    with open(os.path.join(build, 'compile_commands.json'), encoding='utf-8') as file:
        entries = json.load(file)
    found = {}
    for entry in entries:
        path = os.path.normpath(os.path.join(entry['directory'], entry['file']))
        inside = os.path.relpath(path, tree)
        if inside.endswith('.cc') and inside.startswith(tuple(f + '/' for f in folders)):
            words = shlex.split(entry['command'])
            if words and os.path.basename(words[0]) == 'ccache':
                entry['command'] = shlex.join(words[1:])
            found.setdefault(inside, Source(path, entry['command'], entry['directory']))
    return [found[name] for name in sorted(found)]


def groups_of(sources):
    """The first group of the same folder that takes it."""
    groups = collections.defaultdict(list)
    for source in sources:
        mine = groups[os.path.dirname(source.path)]
        for group in mine:
            if source.goes_with(group):
                group.append(source)
                break
        else:
            mine.append([source])
    return [group for mine in groups.values() for group in mine]


class Checker:
    def __init__(self, tool, tree, scratch, verbose):
        self.tool, self.tree, self.scratch, self.verbose = tool, tree, scratch, verbose
        self.runs = 0

    def command(self, group):
        paths, defines = {}, {}
        for source in group:
            paths.update(dict.fromkeys(zip_paths(source.paths)))
            defines.update(source.defines)
        options = [word for path in paths for word in path]
        options += [f'-D{k}={v}' if v else f'-D{k}' for k, v in defines.items()]
        return ['-xc++', *group[0].options, '-w', '-ferror-limit=1', *options]

    def check(self, group):
        """Lines of faults; [] for none."""
        self.runs += 1
        if len(group) == 1:
            main = group[0].path
        else:
            handle, main = tempfile.mkstemp(suffix='.cc', dir=self.scratch)
            with os.fdopen(handle, 'w', encoding='utf-8') as file:
                file.writelines(f'#include "{s.path}"\n' for s in group)
        done = subprocess.run(
            [self.tool, '--quiet', f'--config-file={self.tree}/.clang-tidy', main, '--',
             *self.command(group)], capture_output=True, text=True, timeout=600, check=False)
        faults = [line for line in done.stdout.splitlines() if re.search(r' error: ', line)]
        if done.returncode != 0 and not faults:
            faults = [f'{main}: error: {self.tool} ended with status {done.returncode}: '
                      f'{done.stderr.strip()[-300:]}']
        if len(group) > 1 and any('[clang-diagnostic-error]' in line or self.scratch in line
                                  for line in faults):
            if self.verbose:
                print(faults[0], file=sys.stderr)
            middle = len(group) // 2
            return self.check(group[:middle]) + self.check(group[middle:])
        return faults


def zip_paths(words):
    """-isystem keeps its word."""
    out, words = [], iter(words)
    for word in words:
        out.append((word, next(words)) if word == '-isystem' else (word,))
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--tree', default=os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    parser.add_argument('--build')
    parser.add_argument('--jobs', type=int, default=os.cpu_count())
    parser.add_argument('--verbose', action='store_true')
    parser.add_argument('folders', nargs='*', default=FOLDERS)
    args = parser.parse_args()
    tree = os.path.abspath(args.tree)
    tool = shutil.which('clang-tidy-14') or shutil.which('clang-tidy')
    if tool is None:
        print('clang-tidy is not installed')
        return 77
    sources = sources_of(tree, args.build or os.path.join(tree, 'build'), args.folders)
    if not sources:
        print(f'no sources in {", ".join(args.folders)}')
        return 1
    groups = sorted(groups_of(sources), key=lambda g: -sum(s.lines for s in g))
    with tempfile.TemporaryDirectory(prefix='prunex-naming-') as scratch, \
            concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        checker = Checker(tool, tree, scratch, args.verbose)
        faults = sorted(set(line for lines in pool.map(checker.check, groups) for line in lines))
    if args.verbose:
        print(f'{len(sources)} files, {len(groups)} groups, {checker.runs} runs', file=sys.stderr)
    print('\n'.join(faults), end='\n' if faults else '')
    return 1 if faults else 0


if __name__ == '__main__':
    sys.exit(main())
