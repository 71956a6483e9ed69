/* Expressions printed and evaluated. Values are integers; what a sum, product, division or function gives
 * must fit 64 bits, signed.
 */

/* A name that an expression may use. */
typedef struct aot__binding {
  const char *name;
  aot__wide value;
} aot__binding;

static int aot__strength(aot__op op) {
  if (op == AOT__OP_ADD || op == AOT__OP_SUB) return 1;
  if (op == AOT__OP_MUL || op == AOT__OP_DIV) return 2;
  return op == AOT__OP_NEG ? 3 : 4;
}

/* Print an expression, in parentheses where it binds less than `strength`. */
static void aot__put_expr(aot__text *text, const aot__expr *expr, int strength) {
  static const char *const signs[] = {" + ", " - ", " * ", " // "};
  const aot__expr *arg;
  int own = aot__strength(expr->op);
  size_t i;
  if (own < strength) aot__put(text, "(");
  if (expr->op == AOT__OP_INT) {
    aot__put(text, "%lld", (long long)expr->value);
  } else if (expr->op == AOT__OP_NAME) {
    aot__put(text, "%s", expr->name);
  } else if (expr->op == AOT__OP_NEG) {
    aot__put(text, "-");
    aot__put_expr(text, expr->args, own);
  } else if (own < 3) {
    aot__put_expr(text, expr->args, own);
    aot__put(text, "%s", signs[expr->op - AOT__OP_ADD]);
    aot__put_expr(text, expr->args->next, own + 1);
  } else {
    for (i = 0; aot__functions[i].op != expr->op;) i++;
    aot__put(text, "%s(", aot__functions[i].name);
    for (arg = expr->args; arg; arg = arg->next) {
      aot__put_expr(text, arg, 0);
      aot__put(text, arg->next ? ", " : ")");
    }
  }
  if (own < strength) aot__put(text, ")");
}

static const aot__binding *aot__bound_name(const aot__binding *names, size_t n_names, const char *name) {
  size_t i;
  for (i = n_names; i; i--)
    if (!strcmp(names[i - 1].name, name)) return names + i - 1;
  return NULL;
}

/* Are all names of an expression bound? */
static bool aot__all_bound(const aot__expr *expr, const aot__binding *names, size_t n_names) {
  const aot__expr *arg;
  if (expr->op == AOT__OP_NAME) return aot__bound_name(names, n_names, expr->name) != NULL;
  for (arg = expr->args; arg; arg = arg->next)
    if (!aot__all_bound(arg, names, n_names)) return false;
  return true;
}

static aot__wide aot__floor_div(aot__wide a, aot__wide b) {
  aot__wide quotient = a / b;
  return quotient * b != a && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

/* Evaluate; names that are bound twice have their last value. Return false and say why in `fault`,
 * which may be NULL. */
static bool aot__evaluate(const aot__expr *expr, const aot__binding *names, size_t n_names, aot__wide *value,
                          aot__text *fault) {
  const aot__wide limit = (aot__wide)1 << 63;
  aot__wide a, b = 0;
  const aot__expr *arg = expr->args;
  size_t i;
  bool negative;
  aot__uwide magnitude;
  if (expr->op == AOT__OP_INT) {
    *value = expr->value;
    return true;
  }
  if (expr->op == AOT__OP_NAME) {
    const aot__binding *found = aot__bound_name(names, n_names, expr->name);
    if (found) *value = found->value;
    else {
      aot__put(fault, "found '%s', wanted one of ", expr->name);
      for (i = 0; i < n_names; i++) aot__put(fault, "%s%s", i ? ", " : "", names[i].name);
      if (!n_names) aot__put(fault, "no name");
    }
    return found != NULL;
  }
  if (!aot__evaluate(arg, names, n_names, &a, fault)) return false;
  for (arg = arg->next; arg; arg = arg->next) {
    if (!aot__evaluate(arg, names, n_names, &b, fault)) return false;
    if (expr->op == AOT__OP_MIN && b < a) a = b;
    if (expr->op == AOT__OP_MAX && b > a) a = b;
  }
  if ((expr->op == AOT__OP_DIV || expr->op == AOT__OP_CDIV) && b == 0) {
    aot__put(fault, "'");
    aot__put_expr(fault, expr, 0);
    aot__put(fault, "' divides by zero");
    return false;
  }
  negative = false;
  magnitude = 0;
  switch (expr->op) {
    case AOT__OP_NEG: a = -a; break;
    case AOT__OP_ADD: a += b; break;
    case AOT__OP_SUB: a -= b; break;
    case AOT__OP_DIV: a = aot__floor_div(a, b); break;
    case AOT__OP_CDIV: a = -aot__floor_div(-a, b); break;
    case AOT__OP_POWER: {
      aot__wide power = 1;
      while (power < a) power *= 2;
      a = power;
      break;
    }
    case AOT__OP_MUL:
      /* Each factor is below 2**64 in size, so the product's size fits. */
      negative = (a < 0) != (b < 0) && a && b;
      magnitude = (aot__uwide)(a < 0 ? -a : a) * (aot__uwide)(b < 0 ? -b : b);
      break;
    default: break;
  }
  if (expr->op != AOT__OP_MUL) {
    negative = a < 0;
    magnitude = (aot__uwide)(negative ? -a : a);
  }
  if (magnitude >= (aot__uwide)limit + (negative ? 1 : 0)) {
    aot__put(fault, "'");
    aot__put_expr(fault, expr, 0);
    aot__put(fault, "' is ");
    aot__put_wide(fault, negative, magnitude);
    aot__put(fault, ", wanted a value of at most 64 bits");
    return false;
  }
  *value = negative ? -(aot__wide)magnitude : (aot__wide)magnitude;
  return true;
}
