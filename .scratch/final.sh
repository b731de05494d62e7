export PYTHONPATH=$PWD:$PWD/tests PYTHONUNBUFFERED=1
for e in linear_relu_divide conv_relu_bias swish_bias_groupnorm gemm_add_relu; do
  echo "== $e"; (time timeout 75 python3 -m fusewright optimize examples/$e.py -o /tmp/$e.py --report $OUT/$e.json) 2>&1 | grep -v "^pass\|^ *library\|^ *fused\|^$" | tail -32
done
timeout 100 python3 -m pytest -q -m gpu -n 6 tests/test_skeleton_cuda.py tests/test_emitted.py tests/test_optimize_api.py --timeout 120 -p no:cacheprovider -W ignore 2>&1 | tail -15 | cut -c1-250
cd bench; timeout 190 python3 compare.py --device cuda --rounds 21 2>&1 | grep "|\|H200\|Error" 
cd ..; timeout 90 python3 -m pytest -q -m gpu -n 8 tests/test_cheats.py tests/test_controls.py --timeout 100 -p no:cacheprovider -W ignore 2>&1 | tail -25 | cut -c1-250
