#!/usr/bin/env bash
# shellcheck disable=SC2154  # root, venv and default_model are the launcher's
# `./luna test`: every test of the project, then one summary. Sourced by the launcher, whose
# functions build things. A phase that breaks does not keep the next from running.
#   LUNA_TEST_PHASES   which, in which order (default: unit integration asan fuzz tsan; lint takes
#                      too long to be among them: LUNA_TEST_PHASES=lint ./luna test)
#   FUZZ_SECONDS       of each fuzz target (default 30)
#   LUNA_LOAD_SECONDS  of the load test (default 180)

results=$root/build/test-results

# Tests of code that several threads touch; the thread sanitizer runs these alone.
readonly threaded_tests='^test_(backends|base|engine|http|pipeline|telemetry|transport)$'

# Benches are built with the tests, so that they cannot rot; none is run.
readonly release_options=(-DLUNA_BUILD_TESTS=ON -DLUNA_BUILD_BENCH=ON)

build_locked() {  # PRESET TARGET...
  local status=0
  lock
  build "$@" || status=$?
  unlock
  return $status
}

configure_locked() {
  local status=0
  lock
  (configure "$@") || status=$?  # in a subshell: its die() ends the phase, not the run
  unlock
  return $status
}

# run_ctest PHASE PRESET [ctest argument...]: the unit tests, two views of each: ctest's entries and
# GoogleTest's cases.
run_ctest() {
  local phase=$1 folder=$root/build/$2
  shift 2
  mkdir -p "$results/$phase"
  GTEST_OUTPUT="xml:$results/$phase/" PATH=$venv/bin:$PATH timeout 1200 \
    ctest --test-dir "$folder" -j "$(nproc)" --timeout 600 --output-on-failure \
    --output-junit "$results/$phase.xml" "$@"
}

phase_unit() {
  configure_locked release "${release_options[@]}" || return
  build_locked release all || return
  run_ctest unit release
}

# One build serves this phase and the next: clang, address and undefined-behaviour sanitizers.
phase_asan() {
  configure_locked fuzz || return
  build_locked fuzz all || return
  run_ctest asan fuzz -E '^fuzz_'
}

phase_tsan() {
  local targets
  configure_locked tsan || return
  mapfile -t targets < <(ctest --test-dir "$root/build/tsan" -N -R "$threaded_tests" |
    sed -n 's/^ *Test *#[0-9]*: //p')
  ((${#targets[@]})) || { say "no test matches $threaded_tests"; return 1; }
  build_locked tsan luna_plugins "${targets[@]}" || return
  TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1 run_ctest tsan tsan -R "$threaded_tests"
}

phase_fuzz() {
  configure_locked fuzz || return
  build_locked fuzz luna_fuzzers || return
  run_ctest fuzz fuzz -R '^fuzz_'
}

# clang-tidy, with every source of the program and of the plugins; all findings, not the first alone.
phase_lint() {
  configure_locked lint || return
  lock
  cmake --build "$root/build/lint" -- -k 0
  local status=$?
  unlock
  return $status
}

# Files whose tests have no limits in time, those that use one core first: they run beside the load
# test, which takes its minutes anyway.
readonly patient_tests=(templates tokenizer plugins shards numerics reproducible)

run_pytest() {  # REPORT [pytest argument...]
  local report=$1 release=$root/build/release
  shift
  if [[ -x $release/tests/luna_logits ]]; then
    export LUNA_LOGITS=$release/tests/luna_logits
  fi
  LUNA_BIN=$release/bin/luna LUNA_TEST_MODEL=$(model_file "$default_model") PATH=$venv/bin:$PATH \
    timeout 1500 "$venv/bin/python" -m pytest -q -p no:cacheprovider --durations=10 \
    -o junit_logging=system-out -o junit_log_passing_tests=true \
    --junitxml "$results/$report.xml" "$@"
}

# The real binary, over files, pipes and sockets.
phase_integration() {
  configure_locked release "${release_options[@]}" || return
  build_locked release all || return
  local folder=$root/tests/integration patient load_pid status=0
  patient=("${patient_tests[@]/#/"$folder/test_"}")
  patient=("${patient[@]/%/.py}")
  run_pytest integration-load "$folder/test_load.py" >"$results/load.log" 2>&1 &
  load_pid=$!
  run_pytest integration-patient "${patient[@]}" || status=$?
  wait "$load_pid" || status=$?
  cat "$results/load.log"
  run_pytest integration "$folder" --ignore="$folder/test_load.py" "${patient[@]/#/--ignore=}" || status=$?
  return $status
}

# All phases; the summary counts what their reports say and adds a failure for a phase that broke.
run_all_tests() {
  local phase started status
  if (($#)); then
    configure_locked release "${release_options[@]}" && build_locked release all || exit 1
    PATH=$venv/bin:$PATH exec ctest --test-dir "$root/build/release" "$@"
  fi
  rm -rf "$results"
  mkdir -p "$results"
  for phase in ${LUNA_TEST_PHASES:-unit integration asan fuzz tsan}; do
    say "==== $phase"
    started=$SECONDS
    status=0
    "phase_$phase" || status=$?
    printf '%s %s %s\n' "$phase" "$status" $((SECONDS - started)) >>"$results/phases.txt"
  done
  "$venv/bin/python" "$root/tests/summary.py" "$results"
}
